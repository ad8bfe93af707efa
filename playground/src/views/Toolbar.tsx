/** What is done to the document: one primary action, the others by how often they are needed, the rest in a menu. */
import { computed } from "@preact/signals";
import { tokenizer } from "../state/access";
import { accept, again, canRun, done, fillIn, generate, isRunning, proposal, reject, rewrite, stop, versions } from "../state/actions";
import { theEditor } from "../state/document";
import { dialog, isSheetOpen, notify, showError } from "../state/page";
import { scoreDocument } from "../state/scoring";
import { permalink, showLink, showProgram } from "../state/sharing";
import { isStrict } from "../state/start";
import { newStory } from "../state/stories";
import { swipe } from "../state/touch";
import { copyText } from "./clipboard";
import { Menu } from "./Menu";
import { Probabilities } from "./Probabilities";
import { StatusLine } from "./StatusLine";

const blocked = computed(() => !canRun.value);

export function Toolbar() {
  return (
    <div class="toolbar" role="toolbar" aria-label="Document">
      {proposal.value ? <Proposed /> : <Actions />}
      <span class="spacer" />
      <StatusLine />
      <button
        type="button"
        class="icon panels"
        aria-label="Panels"
        title="Settings, context, tree, candidates, numbers"
        aria-expanded={isSheetOpen.value}
        onClick={() => (isSheetOpen.value = !isSheetOpen.value)}
      >
        ▤
      </button>
    </div>
  );
}

/** While filled-in text is proposed, nothing else can be done. */
function Proposed() {
  return (
    <>
      <button type="button" class="primary" onClick={accept}>
        Accept <kbd>Enter</kbd>
      </button>
      <button type="button" onClick={reject}>
        Reject <kbd>Esc</kbd>
      </button>
      <span class="question">Keep the text that was filled in?</span>
    </>
  );
}

function Actions() {
  return (
    <>
      {isRunning.value ? (
        <button type="button" class="primary" onClick={stop}>
          Stop <kbd>Esc</kbd>
        </button>
      ) : (
        <button type="button" class="primary" disabled={blocked.value} onClick={() => void generate()}>
          Continue <kbd>Ctrl ⏎</kbd>
        </button>
      )}
      <button type="button" class="another" disabled={blocked.value || !done.value} title="Go back and generate with another seed" onClick={() => void again(false)}>
        Another
      </button>
      <Versions />
      <span class="group roomy">
        <button type="button" class="icon" aria-label="Undo" title="Undo (Ctrl Z)" disabled={blocked.value} onClick={() => theEditor().undo()}>
          ↶
        </button>
        <button type="button" class="icon" aria-label="Redo" title="Redo (Ctrl Y)" disabled={blocked.value} onClick={() => theEditor().redo()}>
          ↷
        </button>
      </span>
      <Probabilities />
      <More />
    </>
  );
}

/** Turns over the versions of the last generation. */
function Versions() {
  const { at, ids } = versions.value;
  return (
    <span class="group versions" role="group" aria-label="Versions">
      <button type="button" class="icon" aria-label="Previous version" title="Previous version (Alt ←)" disabled={blocked.value || at < 1} onClick={() => swipe(-1)}>
        ‹
      </button>
      <span aria-live="off">{ids.length > 0 ? `${at + 1}/${ids.length}` : "–"}</span>
      <button
        type="button"
        class="icon"
        aria-label="Next version"
        title="Next version; after the last one, another is generated (Alt →)"
        disabled={blocked.value || ids.length === 0}
        onClick={() => swipe(1)}
      >
        ›
      </button>
    </span>
  );
}

function More() {
  return (
    <Menu label="More" face="⋯" class="icon">
      <button type="button" class="tiny" disabled={blocked.value || !done.value} onClick={() => void again(false)}>
        Another
      </button>
      <button type="button" class="cramped" disabled={blocked.value} onClick={() => theEditor().undo()}>
        Undo
      </button>
      <button type="button" class="cramped" disabled={blocked.value} onClick={() => theEditor().redo()}>
        Redo
      </button>
      <button type="button" disabled={blocked.value || typeof done.value?.draft.seed !== "number"} onClick={() => void again(true)}>
        Same again
        <small>{done.value?.draft.seed === null ? "This model's engine does not use seeds" : "The last generation, with its seed"}</small>
      </button>
      <button type="button" disabled={blocked.value || !tokenizer.value?.infill} onClick={() => void fillIn()}>
        Fill in <kbd>Alt ⏎</kbd>
        <small>{tokenizer.value && !tokenizer.value.infill ? "This model has no fill-in-the-middle tokens" : "Text at the cursor"}</small>
      </button>
      {!isStrict && (
        <button type="button" disabled={blocked.value} onClick={() => void rewrite(theEditor().cursor)}>
          Rewrite
          <small>The text after the cursor, most of which is expected to stay</small>
        </button>
      )}
      <button type="button" disabled={blocked.value} onClick={() => void scoreDocument()}>
        Score
        <small>How surprising is each token?</small>
      </button>
      <button type="button" disabled={blocked.value} onClick={() => (dialog.value = "template")}>
        Template…
        <small>A request to an instruct model, as text</small>
      </button>
      <hr />
      <button type="button" disabled={versions.value.ids.length < 2} onClick={() => (dialog.value = "candidates")}>
        Side by side
        <small>All versions, and where they diverge</small>
      </button>
      <button type="button" disabled={blocked.value} onClick={() => void share()}>
        Share
        <small>A link that reproduces this</small>
      </button>
      <button type="button" disabled={blocked.value} onClick={() => void showProgram()}>
        Copy as…
        <small>curl, Python, JavaScript, shell</small>
      </button>
      <hr />
      <button type="button" disabled={blocked.value} onClick={() => void newStory()}>
        New story
      </button>
    </Menu>
  );
}

/** Copies the link; where browsers do not allow that, it is in the address bar. */
async function share(): Promise<void> {
  try {
    const link = await permalink();
    if (await copyText(link)) {
      notify("The link was copied. It contains the prompt and all settings.");
    } else {
      showLink(link);
      notify("The link is in the address bar: copy it from there. It contains the prompt and all settings.");
    }
  } catch (error) {
    showError(error);
  }
}
