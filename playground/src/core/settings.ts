/** Settings from the server's parameter table: what a control shows, and what is sent of it. */

/** A row of the parameter table, as the page gets it. */
export interface Parameter {
  name: string;
  kind: string;
  group: string;
  help: string;
  default?: unknown;
  minimum?: number;
  maximum?: number;
  only?: unknown[];
  example?: unknown;
}

export type Settings = Readonly<Record<string, unknown>>;

/** What is typed into a control is wrong. `param`: the setting's name, where it is not said elsewhere. */
export class WrongValue extends Error {
  constructor(
    message: string,
    readonly param: string | null = null,
  ) {
    super(message);
  }
}

const ESCAPES: Record<string, string> = { n: "\n", t: "\t", r: "\r", "\\": "\\" };

/** Returns the value of what was typed, undefined where nothing was. Throws WrongValue. */
export function parseValue(parameter: Parameter, typed: string): unknown {
  if (typed.trim() === "" && parameter.kind !== "stop") return undefined;
  switch (parameter.kind) {
    case "number":
    case "integer":
      return parseNumber(parameter, typed);
    case "boolean":
      return typed === "true";
    case "string":
      return typed;
    case "stop":
    case "strings":
      return parseLines(typed);
    case "token_ids":
      return parseIds(typed);
    default:
      return parseJson(parameter, typed);
  }
}

function parseNumber({ kind, minimum, maximum }: Parameter, typed: string): number {
  const value = Number(typed);
  if (!Number.isFinite(value)) throw new WrongValue("Enter a number.");
  if (kind === "integer" && !Number.isInteger(value)) throw new WrongValue("Enter a whole number.");
  if (minimum !== undefined && value < minimum) throw new WrongValue(`The minimum is ${minimum}.`);
  if (maximum !== undefined && value > maximum) throw new WrongValue(`The maximum is ${maximum}.`);
  return value;
}

function parseLines(typed: string): string[] | undefined {
  const lines = typed.split("\n").filter((line) => line !== "");
  if (lines.length === 0) return undefined;
  return lines.map((line) => line.replace(/\\([ntr\\])/g, (_, letter: string) => ESCAPES[letter] ?? letter));
}

function parseIds(typed: string): number[] {
  const ids = typed.split(/[\s,]+/).filter((id) => id !== "").map(Number);
  if (!ids.every((id) => Number.isInteger(id) && id >= 0)) throw new WrongValue("Enter token ids, separated by commas.");
  return ids;
}

function parseJson({ example }: Parameter, typed: string): unknown {
  try {
    return JSON.parse(typed);
  } catch {
    throw new WrongValue(`Enter JSON, such as ${JSON.stringify(example)}.`);
  }
}

/** Returns what a control shows for a value: the inverse of `parseValue`. */
export function showValue(parameter: Parameter, value: unknown): string {
  if (value === undefined || value === null) return "";
  switch (parameter.kind) {
    case "number":
    case "integer":
    case "boolean":
    case "string":
      return String(value);
    case "stop":
    case "strings":
      return [value].flat().map((line) => escapeLine(String(line))).join("\n");
    case "token_ids":
      return Array.isArray(value) ? value.join(", ") : String(value);
    default:
      return JSON.stringify(value);
  }
}

function escapeLine(line: string): string {
  return line.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll("\t", "\\t").replaceAll("\r", "\\r");
}

/** Returns `settings` with a value, without it where that is the default. */
export function withValue(settings: Settings, parameter: Parameter, value: unknown): Settings {
  const { [parameter.name]: _, ...others } = settings;
  const isDefault = value === undefined || JSON.stringify(value) === JSON.stringify(parameter.default ?? null);
  return isDefault ? others : { ...others, [parameter.name]: value };
}

/** Returns the step of a slider for a range; undefined where a slider would be too coarse. */
export function sliderStep({ kind, minimum, maximum }: Parameter): number | undefined {
  if (minimum === undefined || maximum === undefined || maximum - minimum > 200) return undefined;
  if (kind === "integer") return 1;
  return kind === "number" ? (maximum - minimum > 10 ? undefined : 0.05) : undefined;
}

/** Returns only settings that the server knows: a link or preset may come from another version. */
export function knownSettings(settings: unknown, parameters: readonly Parameter[]): Settings {
  const names = new Set(parameters.map((parameter) => parameter.name));
  return Object.fromEntries(Object.entries((settings ?? {}) as Settings).filter(([name]) => names.has(name)));
}
