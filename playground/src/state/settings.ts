/** The settings of completions, presets of them, and the seed. */
import { batch, computed, effect, signal } from "@preact/signals";
import { knownSettings, WrongValue, type Parameter, type Settings } from "../core/settings";
import type { Until } from "../core/until";
import { start } from "./start";
import { store, stored } from "./storage";

export const parameters: readonly Parameter[] = start.parameters;
const FIRST: Settings = { max_tokens: 80, temperature: 0.8 };
const BUILT_IN: Record<string, Settings> = {
  Story: FIRST,
  Careful: { max_tokens: 80, temperature: 0.3 },
  "Most likely": { max_tokens: 80, temperature: 0 },
  Wild: { max_tokens: 80, temperature: 1.3, min_p: 0.03 },
  "API defaults": {},
};

export const settings = signal<Settings>(read("settings", FIRST));
const saved = signal<Record<string, Settings>>(read("presets", {}));
export const presets = computed<Record<string, Settings>>(() => ({
  ...Object.fromEntries(Object.entries(BUILT_IN).map(([name, values]) => [name, knownSettings(values, parameters)])),
  ...saved.value,
}));

export interface Mistake {
  typed: string;
  message: string;
}

/** What was typed into controls and is no value of their settings: by the control's id, since controls go with their panel. */
export const mistakes = signal<Readonly<Record<string, Mistake>>>({});

export function controlId(scope: string, name: string): string {
  return `${scope}-${name}`;
}

export function setMistake(id: string, mistake: Mistake | null): void {
  const { [id]: before, ...others } = mistakes.peek();
  if (mistake) mistakes.value = { ...others, [id]: mistake };
  else if (before) mistakes.value = others;
}

/** Throws WrongValue where what is typed into a control of a scope is no value: a request would have another one. */
export function requireValues(scope: string, names: readonly string[] = parameters.map(({ name }) => name)): void {
  for (const name of names) {
    const mistake = mistakes.peek()[controlId(scope, name)];
    if (mistake) throw new WrongValue(`${name}: ${mistake.message}`, name);
  }
}

/** Takes other settings as a whole; nothing is left of what was typed. */
export function replaceSettings(values: Settings): void {
  batch(() => {
    settings.value = values;
    for (const { name } of parameters) setMistake(controlId("write", name), null);
  });
}

/** Where a continuation ends, beside `max_tokens` and `stop`. */
export const until = signal<Until>(stored("until") === "sentence" ? "sentence" : stored("until") === "paragraph" ? "paragraph" : "");
effect(() => store("until", until.value));

effect(() => store("settings", JSON.stringify(settings.value)));
effect(() => store("presets", JSON.stringify(saved.value)));

function read<T extends object>(name: string, fallback: T): T {
  try {
    const found: unknown = JSON.parse(stored(name) ?? "null");
    if (found === null || typeof found !== "object") return fallback;
    return (name === "settings" ? knownSettings(found, parameters) : found) as T;
  } catch {
    return fallback;
  }
}

export function isBuiltIn(name: string): boolean {
  return name in BUILT_IN;
}

export function savePreset(name: string): void {
  if (name && !isBuiltIn(name)) saved.value = { ...saved.value, [name]: settings.value };
}

export function removePreset(name: string): void {
  const { [name]: _, ...others } = saved.value;
  saved.value = others;
}
