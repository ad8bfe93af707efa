/** The keyboard, and what is not obvious. */
import { ModalDialog } from "./ModalDialog";

const KEYS: [string, string][] = [
  ["Ctrl Enter", "Continue the text"],
  ["Esc", "Stop; reject what was filled in; close"],
  ["Ctrl Z, Ctrl Y", "Undo, redo: a generated text counts as one step"],
  ["Ctrl Space", "Alternatives of the token at the cursor; arrows move, Enter continues from there"],
  ["Alt ←, Alt →", "Previous and next version; after the last one, another is generated"],
  ["Alt Enter", "Fill in at the cursor; Enter accepts"],
  ["Tab", "Next control; Shift Tab goes back"],
  ["?, F1", "This help (F1 also while typing)"],
];

export function HelpDialog() {
  return (
    <ModalDialog title="Help">
      <dl class="keys">
        {KEYS.map(([keys, meaning]) => (
          <div key={keys}>
            <dt>
              <kbd>{keys}</kbd>
            </dt>
            <dd>{meaning}</dd>
          </div>
        ))}
      </dl>
      <p>
        On a Mac, use Command instead of Ctrl, except for Ctrl Space, and Option instead of Alt; in a text, Option with ← and → moves
        by words.
      </p>
      <p>
        With a finger: tap a token for its alternatives, hold it to ban or favour it, swipe for the previous or next version.
      </p>
      <p>
        Underlined text was generated. <b>%</b> shows how likely each token was. Nothing is lost by trying again: every version is in
        the tree, which stays in this browser.
      </p>
      <p class="hint">
        This page includes work of others: <a href="playground/LICENSES.txt">licences</a>.
      </p>
    </ModalDialog>
  );
}
