/** The beginning of a document that is not sent: greyed, with a line where the sent text begins. */
import { StateEffect, StateField, type Extension } from "@codemirror/state";
import { Decoration, EditorView, WidgetType, type DecorationSet } from "@codemirror/view";

/** Sets where the sent text begins; 0 where all of it is sent. */
export const setCut = StateEffect.define<number>({ map: (cut, changes) => changes.mapPos(cut, 1) });

class Boundary extends WidgetType {
  override eq(): boolean {
    return true;
  }

  override toDOM(): HTMLElement {
    const element = document.createElement("span");
    element.className = "cut";
    element.textContent = "the model reads from here on";
    return element;
  }
}

const GREYED = Decoration.mark({ class: "left-out" });
const BOUNDARY = Decoration.widget({ widget: new Boundary(), side: -1 });

export const leftOut: Extension = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update(decorations, transaction) {
    let next = decorations.map(transaction.changes);
    for (const effect of transaction.effects) {
      if (!effect.is(setCut)) continue;
      const cut = Math.min(effect.value, transaction.newDoc.length);
      next = cut > 0 ? Decoration.set([GREYED.range(0, cut), BOUNDARY.range(cut)]) : Decoration.none;
    }
    return next;
  },
  provide: (field) => EditorView.decorations.from(field),
});
