/** A text cut into tokens, with their ids and bytes. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { detokenize, tokenize } from "../api/client";
import { visible } from "../core/tokens";
import { isSpecial, key, model, tokenizer } from "../state/access";
import { text } from "../state/document";
import { problem, showError } from "../state/page";

const DELAY_MS = 150;
const MAX_SHOWN = 5000;

interface CutToken {
  id: number;
  text: string;
  bytes: string;
}

export function TokensView() {
  const typed = useSignal(text.peek());
  const addsStart = useSignal(true);
  const tokens = useSignal<CutToken[]>([]);
  const ownProblem = useRef(problem.peek());
  useEffect(() => {
    const abort = new AbortController();
    const timer = setTimeout(() => void cut(typed.value, addsStart.value, abort.signal), DELAY_MS);
    return () => (clearTimeout(timer), abort.abort());
  }, [typed.value, addsStart.value, model.value]);

  async function cut(prompt: string, special: boolean, signal: AbortSignal): Promise<void> {
    if (!model.value) return;
    try {
      const body = { model: model.value, prompt, add_special_tokens: special, return_token_strs: true, return_token_bytes: true };
      const answer = await tokenize(body, key.value, signal);
      tokens.value = answer.tokens.map((id, index) => ({
        id,
        text: answer.token_strs?.[index] ?? "",
        bytes: answer.token_bytes?.[index] ?? "",
      }));
      if (problem.value === ownProblem.current) problem.value = null; // not that of ids, which may have come meanwhile
    } catch (error) {
      showError(error);
      ownProblem.current = problem.value;
    }
  }

  return (
    <section class="tokens" aria-label="Tokens">
      <label for="text-to-cut">Text</label>
      <textarea id="text-to-cut" rows={6} spellcheck={false} value={typed.value} onInput={(event) => (typed.value = event.currentTarget.value)} />
      <div class="toolbar">
        <p role="status">
          <b>{tokens.value.length.toLocaleString("en")}</b> tokens · {new TextEncoder().encode(typed.value).length.toLocaleString("en")} bytes
          {tokenizer.value && ` · vocabulary of ${tokenizer.value.vocab_size.toLocaleString("en")}`}
        </p>
        <label class="check">
          <input type="checkbox" checked={addsStart.value} onChange={(event) => (addsStart.value = event.currentTarget.checked)} />
          Start token, if the model has one
        </label>
      </div>
      {problem.value && (
        <p class="problem" role="alert">
          {problem.value.message}
        </p>
      )}
      <ol class="pieces" aria-label="Tokens of the text" tabIndex={0}>
        {tokens.value.slice(0, MAX_SHOWN).map((token, index) => (
          <li key={index} class={isSpecial(token.text) ? "special" : `shade-${index % 4}`} title={`bytes ${token.bytes}`}>
            <code>{visible(token.text)}</code>
            <span>{token.id}</span>
            <span class="bytes">{token.bytes}</span>
          </li>
        ))}
      </ol>
      {tokens.value.length > MAX_SHOWN && <p class="hint">Only the first {MAX_SHOWN.toLocaleString("en")} tokens are shown.</p>}
      <Ids onText={(found) => (typed.value = found)} />
    </section>
  );
}

/** The way back: ids become text. */
function Ids({ onText }: { onText: (text: string) => void }) {
  const ids = useSignal("");
  const convert = async (event: Event) => {
    event.preventDefault();
    const tokens = ids.value.split(/[\s,[\]]+/).filter(Boolean).map(Number);
    try {
      onText((await detokenize({ model: model.value, tokens }, key.value)).prompt);
      problem.value = null;
    } catch (error) {
      showError(error);
    }
  };
  return (
    <form class="ids-form" onSubmit={convert}>
      <label for="ids">From ids</label>
      <input id="ids" placeholder="such as 788, 617, 264" value={ids.value} onInput={(event) => (ids.value = event.currentTarget.value)} />
      <button type="submit">To text</button>
    </form>
  );
}
