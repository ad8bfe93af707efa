/** Memory, author's note and lorebook of the story, and how much of its text is sent. */
import { effect, signal } from "@preact/signals";
import { tokenize } from "../api/client";
import { frameOf, NO_NOTES, type Frame, type Framing, type Notes } from "../core/context";
import { key, model, tokenizer } from "./access";
import { theEditor } from "./document";
import { settings } from "./settings";

const DEFAULT_MAX_TOKENS = 16;
const MAX_COUNTS = 500;
const MIN_BUDGET = 64;

export const notes = signal<Notes>(NO_NOTES);
/** Where the text that was sent last began. */
export const cut = signal(0);

const counts = new Map<string, number>();
effect(() => {
  void tokenizer.value;
  counts.clear(); // the same name may be another model now
});

/** Returns how many tokens a text has, by the server's tokenizer. The last few hundred answers are kept. */
export async function countTokens(text: string): Promise<number> {
  const name = `${model.value}\n${text}`;
  const known = counts.get(name);
  if (known !== undefined) return known;
  const { count } = await tokenize({ model: model.value, prompt: text, add_special_tokens: false }, key.value);
  const [oldest] = counts.keys();
  if (counts.size >= MAX_COUNTS && oldest !== undefined) counts.delete(oldest);
  counts.set(name, count);
  return count;
}

/** Returns how many tokens a prompt may have; null where the model's context is not known. */
export function promptBudget(): number | null {
  const context = tokenizer.value?.model_max_length;
  const { max_tokens: maxTokens = DEFAULT_MAX_TOKENS } = settings.value as { max_tokens?: number };
  return context ? context - maxTokens : null;
}

/** Returns how a text is sent with the present notes and settings. `reserved` tokens are taken by something else. */
export async function framingOf(text: string, reserved = 0): Promise<Framing> {
  const budget = (promptBudget() ?? Infinity) - reserved;
  // Settings that leave no room for a prompt are refused by the server, which says so.
  if (budget < MIN_BUDGET) return { frame: undefined, parts: [{ kind: "story", name: "Story", text, leftOut: "" }] };
  return frameOf({ text, notes: notes.value, budget, count: countTokens, lastCut: cut.value });
}

/** Returns what is sent around a text that is about to be continued, and marks what is left out in the document. */
export async function frameFor(text: string, reserved = 0): Promise<{ frame?: Frame }> {
  const { frame } = await framingOf(text, reserved);
  showCut(frame?.cut ?? 0);
  return frame ? { frame } : {};
}

export function showCut(position: number): void {
  cut.value = position;
  theEditor().setCut(position);
}
