/** The last completion, or the document as a prompt, as a program. */
import { signal, useSignal } from "@preact/signals";
import { BASE } from "../api/base";
import { LANGUAGES, program, type Language } from "../core/copy";
import { plainBody } from "../core/request";
import { draftToCopy } from "../state/sharing";
import { start } from "../state/start";
import { copyText } from "./clipboard";
import { ModalDialog } from "./ModalDialog";

/** The language that was chosen last. */
const language = signal<Language>("curl");

export function CopyDialog() {
  const copied = useSignal<{ source: string; isDone: boolean } | null>(null);
  const source = draftToCopy.value ? program(language.value, plainBody(draftToCopy.value), BASE, start.requiresKey) : "";
  const copy = async () => (copied.value = { source, isDone: await copyText(source) });
  return (
    <ModalDialog title="Copy as">
      <fieldset class="segments">
        <legend class="visually-hidden">Language</legend>
        {LANGUAGES.map(([name, label]) => (
          <label key={name}>
            <input type="radio" name="language" checked={language.value === name} onChange={() => (language.value = name)} />
            {label}
          </label>
        ))}
      </fieldset>
      <pre class="source" tabIndex={0} role="region" aria-label="Program">
        {source}
      </pre>
      <p class="hint">{hint(language.value)}</p>
      <button type="button" class="primary" onClick={() => void copy()}>
        Copy
      </button>
      <span role="status"> {copied.value?.source === source && (copied.value.isDone ? "Copied." : "Select the text and copy it.")}</span>
    </ModalDialog>
  );
}

function hint(name: Language): string {
  const key = start.requiresKey ? " Set ONWARD_API_KEY first." : "";
  const needs = { curl: "", python: "Needs pip install openai.", javascript: "Save it as an .mjs file for Node.", cli: "" }[name];
  return `${needs}${key}`.trim();
}
