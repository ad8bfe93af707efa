/** Buttons for everything that is done to the document. */
import { tokenizer } from "../state/access";
import { again, canRun, done, fillIn, generate, isRunning, permalink, rewrite, scoreDocument, stop } from "../state/actions";
import { startNew, theEditor } from "../state/document";
import { announce, dialog, notice } from "../state/page";
import { isStrict } from "../state/start";
import { copyText } from "./clipboard";

export function Toolbar() {
  const blocked = !canRun.value;
  return (
    <div class="toolbar" role="toolbar" aria-label="Document">
      {isRunning.value ? (
        <button type="button" class="primary" onClick={stop}>
          Stop <kbd>Esc</kbd>
        </button>
      ) : (
        <button type="button" class="primary" disabled={blocked} onClick={() => void generate()}>
          Continue <kbd>Ctrl ⏎</kbd>
        </button>
      )}
      <button type="button" disabled={blocked || !done.value} title="Generate again with the same seed" onClick={() => void again(true)}>
        Same again
      </button>
      <button type="button" disabled={blocked || !done.value} title="Go back and generate with another seed" onClick={() => void again(false)}>
        Another
      </button>
      <span class="group">
        <button type="button" aria-label="Undo" title="Undo (Ctrl Z)" disabled={blocked} onClick={() => theEditor().undo()}>
          ↶
        </button>
        <button type="button" aria-label="Redo" title="Redo (Ctrl Y)" disabled={blocked} onClick={() => theEditor().redo()}>
          ↷
        </button>
      </span>
      <button type="button" disabled={blocked || !tokenizer.value?.infill} title={fillTitle()} onClick={() => void fillIn()}>
        Fill in
      </button>
      {!isStrict && (
        <button type="button" disabled={blocked} title="Generate what follows the cursor again; most of it is expected to stay" onClick={() => void rewrite(theEditor().cursor)}>
          Rewrite
        </button>
      )}
      <button type="button" disabled={blocked} title="How surprising is every token of this text?" onClick={() => void scoreDocument()}>
        Score
      </button>
      <span class="group">
        <button type="button" disabled={blocked} onClick={startNew}>
          New
        </button>
        <button type="button" disabled={blocked} onClick={() => void share()}>
          Share
        </button>
        <button type="button" disabled={blocked} onClick={() => (dialog.value = "copy")}>
          Copy as…
        </button>
      </span>
    </div>
  );
}

function fillTitle(): string {
  return tokenizer.value && !tokenizer.value.infill ? "This model has no fill-in-the-middle tokens" : "Fill in at the cursor (Alt ⏎)";
}

/** Puts the link into the address bar and the clipboard. */
async function share(): Promise<void> {
  const link = await permalink();
  history.replaceState(null, "", link);
  notice.value = (await copyText(link)) ? "The link was copied. It holds prompt, settings and seed." : "The link is in the address bar.";
  announce(notice.value);
}
