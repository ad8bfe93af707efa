/** What the model gets to read: memory, lorebook and author's note, and how all of it is put together. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { LoreEntry, Notes, Part } from "../core/context";
import { model } from "../state/access";
import { countTokens, framingOf, notes, promptBudget, showCut } from "../state/context";
import { text } from "../state/document";
import { settings } from "../state/settings";

const DELAY_MS = 400;
const SHOWN_CHARS = 400;

function change(fields: Partial<Notes>): void {
  notes.value = { ...notes.value, ...fields };
}

export function ContextPanel() {
  const { memory, note, noteDepth } = notes.value;
  return (
    <div class="context">
      <label>
        Memory
        <textarea rows={4} value={memory} placeholder="Always at the beginning: characters, setting, style." onInput={(event) => change({ memory: event.currentTarget.value })} />
      </label>
      <label>
        Author's note
        <textarea rows={2} value={note} placeholder="Near the end, such as: [ It begins to rain. ]" onInput={(event) => change({ note: event.currentTarget.value })} />
      </label>
      <label class="row">
        Lines after the note
        <input type="number" min={0} max={1000} value={noteDepth} onChange={(event) => change({ noteDepth: Math.max(0, Math.floor(Number(event.currentTarget.value) || 0)) })} />
      </label>
      <Lorebook />
      <Sent />
    </div>
  );
}

function Lorebook() {
  const { lore } = notes.value;
  const set = (index: number, fields: Partial<LoreEntry>) => change({ lore: lore.map((entry, at) => (at === index ? { ...entry, ...fields } : entry)) });
  return (
    <section aria-labelledby="lorebook">
      <h2 id="lorebook">Lorebook</h2>
      {lore.map((entry, index) => (
        <details key={index} open={entry.text === ""}>
          <summary>{entry.name || entry.keys.join(", ") || "New entry"}</summary>
          <label>
            Name
            <input type="text" value={entry.name} onInput={(event) => set(index, { name: event.currentTarget.value })} />
          </label>
          <label>
            Keys
            <input type="text" defaultValue={entry.keys.join(", ")} placeholder="Lily, gardener" onInput={(event) => set(index, { keys: keysOf(event.currentTarget.value) })} />
          </label>
          <label>
            Text
            <textarea rows={3} value={entry.text} onInput={(event) => set(index, { text: event.currentTarget.value })} />
          </label>
          <div class="row">
            <label class="check">
              <input type="checkbox" checked={entry.isAlways} onChange={(event) => set(index, { isAlways: event.currentTarget.checked })} />
              Always
            </label>
            <button type="button" class="quiet" onClick={() => change({ lore: lore.filter((_, at) => at !== index) })}>
              Remove
            </button>
          </div>
        </details>
      ))}
      <button type="button" class="quiet" onClick={() => change({ lore: [...lore, { name: "", keys: [], text: "", isAlways: false }] })}>
        Add an entry
      </button>
      <p class="hint">An entry is sent while one of its keys occurs near the end of the story.</p>
    </section>
  );
}

function keysOf(typed: string): string[] {
  return typed.split(",").map((key) => key.trim()).filter(Boolean);
}

interface Counted extends Part {
  tokens: number;
}

/** Every part of the prompt with its tokens, counted by the server. */
function Sent() {
  const parts = useSignal<Counted[]>([]);
  const wrong = useSignal("");
  useEffect(() => {
    let isCurrent = true;
    const timer = setTimeout(async () => {
      try {
        const framing = await framingOf(text.value);
        const counted = await Promise.all(framing.parts.map(async (part) => ({ ...part, tokens: await countTokens(part.text) })));
        if (!isCurrent) return;
        showCut(framing.frame?.cut ?? 0);
        [parts.value, wrong.value] = [counted, ""];
      } catch (error) {
        if (isCurrent) wrong.value = error instanceof Error ? error.message : String(error);
      }
    }, DELAY_MS);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [text.value, notes.value, settings.value.max_tokens, model.value]);
  const total = parts.value.reduce((sum, part) => sum + (part.leftOut ? 0 : part.tokens), 0);
  const budget = promptBudget();
  return (
    <section aria-labelledby="sent">
      <h2 id="sent">What is sent</h2>
      {wrong.value ? (
        <p class="wrong" role="alert">
          {wrong.value}
        </p>
      ) : (
        <p class="hint">
          {total.toLocaleString("en")} {budget === null ? "tokens" : `of ${budget.toLocaleString("en")} tokens`}; the rest of the context is for the continuation.
        </p>
      )}
      <ol class="parts" aria-label="Parts of the prompt">
        {parts.value.map((part, index) => (
          <li key={index} class={`part-${part.kind} ${part.leftOut ? "unsent" : ""}`}>
            <div class="row">
              <b>{part.name}</b>
              <span>
                {part.tokens.toLocaleString("en")} {part.leftOut ? `not sent: ${part.leftOut}` : ""}
              </span>
            </div>
            <p>{shortened(part.text)}</p>
          </li>
        ))}
      </ol>
    </section>
  );
}

function shortened(whole: string): string {
  return whole.length <= SHOWN_CHARS ? whole : `${whole.slice(0, SHOWN_CHARS / 2)} […] ${whole.slice(-SHOWN_CHARS / 2)}`;
}
