/** The last completion, or the document as a prompt, as a program. */
import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import { BASE } from "../api/base";
import { LANGUAGES, program, type Language } from "../core/copy";
import { plainBody, type Draft } from "../core/request";
import { model } from "../state/access";
import { done, nextSeed } from "../state/actions";
import { text } from "../state/document";
import { settings } from "../state/settings";
import { start } from "../state/start";
import { copyText } from "./clipboard";
import { ModalDialog } from "./ModalDialog";

const language = signal<Language>("curl");
const copied = signal("");

export function CopyDialog() {
  const [draft] = useState(draftToCopy);
  const source = program(language.value, plainBody(draft), BASE, start.requiresKey);
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
      <pre class="source" tabIndex={0} aria-label="Program">
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

function draftToCopy(): Draft {
  const last = done.value;
  if (last && last.texts.some((each) => last.draft.prompt + each + (last.draft.suffix ?? "") === text.value)) return last.draft;
  const { seed: _, ...others } = settings.value;
  return { model: model.value, prompt: text.value, settings: others, seed: nextSeed() };
}

function hint(name: Language): string {
  const key = start.requiresKey ? " Set ONWARD_API_KEY first." : "";
  const needs = { curl: "", python: "Needs pip install openai.", javascript: "Save it as an .mjs file for Node.", cli: "" }[name];
  return `${needs}${key}`.trim();
}
