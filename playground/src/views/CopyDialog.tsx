/** The last completion, or the document as a prompt, as a program. */
import { signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { BASE } from "../api/base";
import { LANGUAGES, program, type Language } from "../core/copy";
import { plainBody, type Draft } from "../core/request";
import { showError } from "../state/page";
import { draftToCopy } from "../state/sharing";
import { start } from "../state/start";
import { copyText } from "./clipboard";
import { ModalDialog } from "./ModalDialog";

const language = signal<Language>("curl");
const copied = signal("");

export function CopyDialog() {
  const draft = useSignal<Draft | null>(null);
  useEffect(() => {
    draftToCopy().then((found) => (draft.value = found), showError);
  }, []);
  const source = draft.value ? program(language.value, plainBody(draft.value), BASE, start.requiresKey) : "";
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
      <button type="button" class="primary" onClick={async () => (copied.value = (await copyText(source)) ? "Copied." : "Select the text and copy it.")}>
        Copy
      </button>
      <span role="status"> {copied.value}</span>
    </ModalDialog>
  );
}

function hint(name: Language): string {
  const key = start.requiresKey ? " Set ONWARD_API_KEY first." : "";
  const needs = { curl: "", python: "Needs pip install openai.", javascript: "Save it as an .mjs file for Node.", cli: "" }[name];
  return `${needs}${key}`.trim();
}
