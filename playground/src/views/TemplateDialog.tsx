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
/** What the server has made of a request with the model's own template, or why it refused to. */
const rendered = signal<{ question: string; prompt: string; refusal: string } | null>(null);

export function TemplateDialog() {
  const hasOwn = Boolean(tokenizer.value?.chat_template);
  const names = [...(hasOwn ? [OWN] : []), ...TEMPLATES.map(({ name }) => name)];
  const name = names.includes(chosen.value) ? chosen.value : (names[0] ?? "");
  const template = TEMPLATES.find((each) => each.name === name);
  const question = template ? "" : JSON.stringify({ model: model.value, messages: messages() });
  useEffect(() => (question ? render(question) : undefined), [question]);
  const own = rendered.value?.question === question ? rendered.value : null;
  /** What is inserted; undefined while the server renders it. */
  const shown = template ? request(template, system.value, user.value) : own?.prompt;
  const insert = (event: Event) => {
    event.preventDefault();
    if (shown === undefined) return;
    theEditor().append(shown);
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
        <pre class="source" tabIndex={0} role="region" aria-label="What is inserted" aria-busy={shown === undefined}>
          {shown}
        </pre>
        {own?.refusal && (
          <p class="problem" role="alert">
            {own.refusal}
          </p>
        )}
        <p class="hint">
          Its markers appear in the text as you see them, and can be edited. {hasOwn ? "The model's own template is the one that it was trained with." : "Choose the template that the model was trained with."}
        </p>
        <button type="submit" class="primary" disabled={!canRun.value || !shown}>
          Insert at the end
        </button>
      </form>
    </ModalDialog>
  );
}

function messages() {
  return [...(system.value ? [{ role: "system", content: system.value }] : []), { role: "user", content: user.value }];
}

/** Has the server render a question after a pause in typing. Returns what ends that. */
function render(question: string): () => void {
  const ended = new AbortController();
  const timer = setTimeout(() => {
    applyTemplate(JSON.parse(question), key.value, ended.signal).then(
      ({ prompt }) => (rendered.value = { question, prompt, refusal: "" }),
      (error: unknown) => {
        if (!ended.signal.aborted) rendered.value = { question, prompt: "", refusal: error instanceof Error ? error.message : String(error) };
      },
    );
  }, TYPING_PAUSE_MS);
  return () => {
    clearTimeout(timer);
    ended.abort();
  };
}
