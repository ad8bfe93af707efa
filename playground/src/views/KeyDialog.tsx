/** Asks for the server's API key. */
import { signal } from "@preact/signals";
import { key, useKey } from "../state/access";
import { dialog, problem } from "../state/page";
import { ModalDialog } from "./ModalDialog";

const typed = signal("");
const remembers = signal(false);

export function KeyDialog() {
  return (
    <ModalDialog title="API key">
      <form class="form" onSubmit={submit}>
        <label>
          This server's key
          <input type="password" autocomplete="off" autofocus value={typed.value} onInput={(event) => (typed.value = event.currentTarget.value)} />
        </label>
        <label class="check">
          <input type="checkbox" checked={remembers.value} onChange={(event) => (remembers.value = event.currentTarget.checked)} />
          Keep it until this tab is closed
        </label>
        <p class="hint">Otherwise it is forgotten when the page is left. It is sent to this server only.</p>
        {problem.value && <p role="alert">{problem.value.message}</p>}
        <button type="submit" class="primary">
          Use this key
        </button>
      </form>
    </ModalDialog>
  );
}

async function submit(event: Event): Promise<void> {
  event.preventDefault();
  problem.value = null;
  const value = typed.value.trim();
  await useKey(value, remembers.value);
  if (problem.value !== null || key.value !== value) return;
  typed.value = "";
  dialog.value = null;
}
