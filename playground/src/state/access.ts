/** The key, the models that it opens, and the tokenizer of the one that is selected. */
import { batch, signal } from "@preact/signals";
import { listModels, tokenizerInfo } from "../api/client";
import type { TokenizerInfo } from "../api/types";
import { problem, showError } from "./page";
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

/** Lists the models. Without a key where one is required, asks for it instead. */
export async function loadModels(): Promise<boolean> {
  if (start.requiresKey && !key.value) return false;
  try {
    const listed = (await listModels(key.value)).data.map((each) => each.id);
    batch(() => {
      models.value = listed;
      problem.value = null;
    });
    await selectModel(listed.includes(model.value) ? model.value : (listed[0] ?? ""));
    return true;
  } catch (error) {
    showError(error);
    return false;
  }
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
