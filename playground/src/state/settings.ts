/** The settings of completions, presets of them, and the seed. */
import { computed, effect, signal } from "@preact/signals";
import { knownSettings, type Parameter, type Settings } from "../core/settings";
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
