/** Tokens that are banned or favoured: `logit_bias` by token id, with the texts that people know them by. */
import { computed, effect, signal } from "@preact/signals";
import { tokenize } from "../api/client";
import { visible, type Token } from "../core/tokens";
import { key, model } from "./access";
import { notify, problem, showError } from "./page";
import { controlId, setMistake, settings } from "./settings";
import { store, stored } from "./storage";

export const BAN = -100;
export const FAVOUR = 5;

/** Texts of token ids; those of another model may be wrong, so they are kept by model. */
const names = signal<Record<string, string>>(kept());
effect(() => store("bias-names", JSON.stringify(names.value)));

export interface Bias {
  id: string;
  name: string;
  value: number;
}

export const biases = computed<Bias[]>(() =>
  Object.entries((settings.value.logit_bias ?? {}) as Record<string, number>).map(([id, value]) => ({
    id,
    value,
    name: names.value[`${model.value}/${id}`] ?? `token ${id}`,
  })),
);

/** Biases a token from now on. `ids` are its ids where they are known; otherwise the tokenizer is asked. */
export async function bias(text: string, value: number, ids: Token["ids"] = []): Promise<void> {
  try {
    const found = ids.length > 0 ? ids : (await tokenize({ model: model.value, prompt: text, add_special_tokens: false }, key.value)).tokens;
    const [id] = found;
    if (id === undefined || found.length > 1) {
      problem.value = { message: `${visible(text)} is more than one token: put it into bad_words or banned_tokens instead.`, param: null };
      return;
    }
    names.value = { ...names.value, [`${model.value}/${id}`]: visible(text) };
    setBias(String(id), value);
    notify(`${visible(text)} is ${value <= BAN ? "banned" : value > 0 ? "favoured" : "less likely"} from now on.`, {
      label: "Remove bias",
      act: () => setBias(String(id), null),
    });
  } catch (error) {
    showError(error);
  }
}

/** Changes a bias; null removes it. */
export function setBias(id: string, value: number | null): void {
  const { logit_bias: now, ...others } = settings.value;
  const { [id]: _, ...rest } = (now ?? {}) as Record<string, number>;
  const next = value === null ? rest : { ...rest, [id]: value };
  setMistake(controlId("write", "logit_bias"), null);
  settings.value = Object.keys(next).length > 0 ? { ...others, logit_bias: next } : others;
}

function kept(): Record<string, string> {
  try {
    const found: unknown = JSON.parse(stored("bias-names") ?? "{}");
    return Object.fromEntries(Object.entries(found ?? {}).filter(([, name]) => typeof name === "string"));
  } catch {
    return {};
  }
}
