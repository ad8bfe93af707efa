/** A request to an instruct model, inserted into the document as the text that it is. */
import { signal } from "@preact/signals";
import { request, TEMPLATES } from "../core/templates";
import { canRun } from "../state/actions";
import { theEditor } from "../state/document";
import { dialog } from "../state/page";
import { ModalDialog } from "./ModalDialog";

const chosen = signal(TEMPLATES[0]?.name ?? "");
const system = signal("");
const user = signal("");

export function TemplateDialog() {
  const template = TEMPLATES.find(({ name }) => name === chosen.value);
  if (!template) return null;
  const insert = (event: Event) => {
    event.preventDefault();
    theEditor().append(request(template, system.value, user.value));
    user.value = "";
    dialog.value = null;
  };
  return (
    <ModalDialog title="Ask an instruct model">
      <form class="form" onSubmit={insert}>
        <label>
          Template
          <select value={chosen.value} onChange={(event) => (chosen.value = event.currentTarget.value)}>
            {TEMPLATES.map(({ name }) => (
              <option key={name}>{name}</option>
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
        <pre class="source" tabIndex={0} aria-label="What is inserted">
          {request(template, system.value, user.value)}
        </pre>
        <p class="hint">Its marks stand in the text as you see them, and can be edited. Choose the template that the model was trained with.</p>
        <button type="submit" class="primary" disabled={!canRun.value}>
          Insert at the end
        </button>
      </form>
    </ModalDialog>
  );
}
