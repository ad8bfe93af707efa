/** Two completions of one prompt, side by side. */
import { signal } from "@preact/signals";
import type { Meter } from "../core/meter";
import type { Draft } from "../core/request";
import type { Settings } from "../core/settings";
import { key, model, served } from "./access";
import { nextSeed } from "./actions";
import { frameFor } from "./context";
import { text } from "./document";
import { run, type LiveChoice } from "./generation";
import { announce, problem, showError } from "./page";
import { requireValues, settings } from "./settings";

export interface Side {
  model: string;
  settings: Settings;
  choice: LiveChoice | null;
  meter: Meter | null;
}

export const sides = signal<[Side, Side] | null>(null);
/** Null where the engine of a side uses none. */
export const comparisonSeed = signal<number | null>(null);
export const isComparing = signal(false);

let abort = new AbortController();

/** Begins with the settings of the document on both sides. */
export function openComparison(): void {
  if (sides.value) return;
  const { seed: _, n: __, best_of: ___, ...common } = settings.value;
  const side = { model: model.value, settings: common, choice: null, meter: null };
  sides.value = [side, { ...side, settings: { ...common, temperature: common.temperature === 0 ? 0.8 : 0 } }];
}

export function changeSide(index: 0 | 1, fields: Partial<Side>): void {
  const now = sides.value;
  if (!now) return;
  const next: [Side, Side] = [...now];
  next[index] = { ...next[index], ...fields };
  sides.value = next;
}

/** The scope of the controls of a side. */
export function scopeOf(index: 0 | 1): string {
  return `side-${index}`;
}

/** Runs both sides at once, with one seed. */
export async function compare(): Promise<void> {
  const now = sides.value;
  if (!now || isComparing.value) return;
  try {
    for (const index of [0, 1] as const) requireValues(scopeOf(index));
    requireValues("write", ["seed"]);
  } catch (error) {
    showError(error);
    return;
  }
  abort = new AbortController();
  isComparing.value = true;
  problem.value = null;
  const seed = nextSeed();
  comparisonSeed.value = seed.seed;
  announce("Comparing.");
  const results = await Promise.allSettled(([0, 1] as const).map((index) => runSide(index, now[index], text.value, seed)));
  for (const result of results) if (result.status === "rejected") showError(result.reason);
  isComparing.value = false;
  announce("Both are done.");
}

async function runSide(index: 0 | 1, side: Side, prompt: string, seed: Pick<Draft, "seed" | "isSeedDrawn">): Promise<void> {
  changeSide(index, { choice: null, meter: null });
  const draft = { model: served(side.model), prompt, ...(await frameFor(prompt)), settings: side.settings, ...seed };
  await run(draft, { key: key.value, signal: abort.signal }, ({ choices, meter, seed: sent }) => {
    const [first] = choices;
    if (sent === null) comparisonSeed.value = null;
    if (first) changeSide(index, { choice: { ...first }, meter });
  });
}

export function stopComparing(): void {
  abort.abort();
}
