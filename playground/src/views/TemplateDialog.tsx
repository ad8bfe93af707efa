/** A request to an instruct model, inserted into the document as the text that it is. */
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { applyTemplate } from "../api/client";
import { request, TEMPLATES } from "../core/templates";
import { key, model, tokenizer } from "../state/access";
import { canRun } from "../state/actions";
import { theEditor } from "../state/document";
import { dialog } from "../state/page";
import { ModalDialog } from "./ModalDialog";

/** The template of the model's files, which only the server renders: it is a program. */
const OWN = "The model's own";
const TYPING_PAUSE_MS = 250;

const chosen = signal("");
const system = signal("");
const user = signal("");
/** What is inserted; null while the server renders it. */
const shown = signal<string | null>("");
const refusal = signal("");

export function TemplateDialog() {
  const hasOwn = Boolean(tokenizer.value?.chat_template);
  const names = [...(hasOwn ? [OWN] : []), ...TEMPLATES.map(({ name }) => name)];
  const name = names.includes(chosen.value) ? chosen.value : (names[0] ?? "");
  useEffect(() => preview(name), [name, system.value, user.value, model.value]);
  const insert = (event: Event) => {
    event.preventDefault();
    if (shown.value === null) return;
    theEditor().append(shown.value);
    user.value = "";
    dialog.value = null;
  };
  return (
    <ModalDialog title="Ask an instruct model">
      <form class="form" onSubmit={insert}>
        <label>
          Template
          <select value={name} onChange={(event) => (chosen.value = event.currentTarget.value)}>
            {names.map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        </label>
        <label>
          Instructions
          <textarea rows={2} value={system.value} placeholder="Optional: how it should answer" onInput={(event) => (system.value = event.currentTarget.value)} />
        </label>
        <label>
          Request
          <textarea rows={3} required value={user.value} onInput={(event) => (user.value = event.currentTarget.value)} />
        </label>
        <pre class="source" tabIndex={0} role="region" aria-label="What is inserted" aria-busy={shown.value === null}>
          {shown.value}
        </pre>
        {refusal.value && (
          <p class="problem" role="alert">
            {refusal.value}
          </p>
        )}
        <p class="hint">
          Its markers appear in the text as you see them, and can be edited. {hasOwn ? "The model's own template is the one that it was trained with." : "Choose the template that the model was trained with."}
        </p>
        <button type="submit" class="primary" disabled={!canRun.value || !shown.value}>
          Insert at the end
        </button>
      </form>
    </ModalDialog>
  );
}

/** Shows what a template makes of the request, its own after a pause in typing. Returns what ends that. */
function preview(name: string): (() => void) | undefined {
  refusal.value = "";
  const template = TEMPLATES.find((each) => each.name === name);
  if (template) {
    shown.value = request(template, system.value, user.value);
    return undefined;
  }
  shown.value = null;
  const ended = new AbortController();
  const messages = [...(system.value ? [{ role: "system", content: system.value }] : []), { role: "user", content: user.value }];
  const timer = setTimeout(() => {
    applyTemplate({ model: model.value, messages }, key.value, ended.signal).then(
      ({ prompt }) => (shown.value = prompt),
      (error: unknown) => {
        if (!ended.signal.aborted) [shown.value, refusal.value] = ["", error instanceof Error ? error.message : String(error)];
      },
    );
  }, TYPING_PAUSE_MS);
  return () => {
    clearTimeout(timer);
    ended.abort();
  };
}
