/** The key, the models that it opens, and the tokenizer of the one that is selected. */
import { signal } from "@preact/signals";
import { listModels, tokenizerInfo, whenModelIsUnknown } from "../api/client";
import type { TokenizerInfo } from "../api/types";
import { notify, problem, showError } from "./page";
import { start } from "./start";

const SESSION_NAME = "onward-key";

export const key = signal(rememberedKey());
export const models = signal<string[]>([]);
export const model = signal("");
export const tokenizer = signal<TokenizerInfo | null>(null);

function rememberedKey(): string {
  try {
    return sessionStorage.getItem(SESSION_NAME) ?? "";
  } catch {
    return "";
  }
}

/** Uses a key from now on. `remembers`: keep it for this browser tab, until it is closed. */
export async function useKey(value: string, remembers: boolean): Promise<void> {
  key.value = value;
  try {
    if (remembers) sessionStorage.setItem(SESSION_NAME, value);
    else sessionStorage.removeItem(SESSION_NAME);
  } catch {
    // private windows: the key stays in memory
  }
  await loadModels();
}

/** Lists the models, and returns whether that worked; an error is shown. Without a key where one is required, asks nothing. */
export async function loadModels(): Promise<boolean> {
  if (start.requiresKey && !key.value) return false;
  problem.value = null;
  try {
    await list();
    return true;
  } catch (error) {
    showError(error);
    return false;
  }
}

let refreshing: Promise<void> | null = null;

/** Lists the models again, which change while the server runs. Where that fails, the old list stays: the next request says why. */
export function refreshModels(): Promise<void> {
  if (start.requiresKey && !key.value) return Promise.resolve();
  refreshing ??= list()
    .catch(() => undefined)
    .finally(() => (refreshing = null));
  return refreshing;
}

/** Lists the models again whenever the person comes back to the page, and when the server does not know a model. */
export function followModels(): void {
  addEventListener("focus", () => void refreshModels());
  document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && void refreshModels());
  whenModelIsUnknown(() => void refreshModels());
}

/** By name, when the file of a model was made: another file of that name is another model. */
let made = new Map<string, number>();

/** Where the selected model is gone, says so and selects the first. */
async function list(): Promise<void> {
  const { data } = await listModels(key.value);
  const listed = data.map((each) => each.id);
  if (JSON.stringify(listed) !== JSON.stringify(models.value)) models.value = listed;
  const before = model.value;
  const madeBefore = made.get(before);
  made = new Map(data.map((each) => [each.id, each.created]));
  if (made.has(before)) {
    if (made.get(before) !== madeBefore) await selectModel(before);
    return;
  }
  const [first = ""] = listed;
  if (before) notify(`This server no longer has the model “${before}”${first && `: “${first}” is selected`}.`);
  await selectModel(first);
}

/** Returns a model that can be asked: the one of this name, or the selected one where the server has it no more. */
export function served(name: string): string {
  return models.value.includes(name) ? name : model.value;
}

export async function selectModel(name: string): Promise<void> {
  model.value = name;
  tokenizer.value = null;
  if (!name) return;
  try {
    const info = await tokenizerInfo(name, key.value);
    if (model.value === name) tokenizer.value = info;
  } catch (error) {
    showError(error);
  }
}

/** Whether the text of an alternative ends the completion instead of being part of it. */
export function isSpecial(text: string): boolean {
  return tokenizer.value?.additional_special_tokens.includes(text) ?? false;
}
