/**
 * Tokens in the editor: a range per token, moved along by edits. Only what is visible becomes a decoration, so a
 * document of 50,000 tokens costs no more to draw than a short one.
 */
import { invertedEffects } from "@codemirror/commands";
import { RangeSet, RangeSetBuilder, RangeValue, StateEffect, StateField, type ChangeDesc, type Extension, type Transaction } from "@codemirror/state";
import { Decoration, EditorView, ViewPlugin, type DecorationSet, type ViewUpdate } from "@codemirror/view";
import { probabilityClass, surpriseClass } from "../core/surprise";
import type { Token } from "../core/tokens";

export type Shading = "plain" | "probability" | "surprise";

/** A token where it now lies. */
export interface PlacedToken {
  token: Token;
  isGenerated: boolean;
}

class TokenRange extends RangeValue {
  constructor(readonly token: Token, readonly isGenerated: boolean) {
    super();
    this.startSide = 1;
    this.endSide = -1;
  }
}

/** Text from here to there is preceded by an edit: its probabilities are of another text. */
interface Stale {
  from: number;
  to: number;
}

interface TokenState {
  ranges: RangeSet<TokenRange>;
  stale: Stale | null;
}

/** Adds tokens; with `replace`, removes all others first. */
export const addTokens = StateEffect.define<{ tokens: PlacedToken[]; replace?: boolean; stale?: Stale | null }>({
  map: (value, changes) => (changes.empty ? value : { ...value, tokens: value.tokens.flatMap((each) => mapped(each, changes)) }),
});
export const setShading = StateEffect.define<Shading>();
/** Marks a transaction whose new text was generated, not typed. */
export const generated = StateEffect.define<number>();

function mapped(placed: PlacedToken, changes: ChangeDesc): PlacedToken[] {
  const from = changes.mapPos(placed.token.from, 1);
  const to = changes.mapPos(placed.token.to, -1);
  return to > from ? [{ ...placed, token: { ...placed.token, from, to } }] : [];
}

const tokenField = StateField.define<TokenState>({
  create: () => ({ ranges: RangeSet.empty, stale: null }),
  update(state, transaction) {
    let { ranges, stale } = state;
    if (transaction.docChanged) {
      ranges = withoutTouched(ranges, transaction).map(transaction.changes);
      stale = nextStale(stale, transaction);
    }
    for (const effect of transaction.effects) {
      if (!effect.is(addTokens)) continue;
      const added = effect.value.tokens.map(({ token, isGenerated }) => new TokenRange(token, isGenerated).range(token.from, token.to));
      ranges = effect.value.replace ? RangeSet.of(added, true) : ranges.update({ add: added, sort: true });
      if (effect.value.stale !== undefined) stale = effect.value.stale;
      else if (effect.value.replace) stale = null;
    }
    return ranges === state.ranges && stale === state.stale ? state : { ranges, stale };
  },
});

/** Returns the ranges without those that a change cuts or fills: what is edited is no longer the model's. */
function withoutTouched(ranges: RangeSet<TokenRange>, transaction: Transaction): RangeSet<TokenRange> {
  transaction.changes.iterChangedRanges((from, to) => {
    ranges = ranges.update({ filterFrom: from, filterTo: to, filter: (start, end) => end <= from || start >= to });
  });
  return ranges;
}

function nextStale(stale: Stale | null, transaction: Transaction): Stale | null {
  const { changes, startState } = transaction;
  const old = stale && { from: changes.mapPos(stale.from, -1), to: changes.mapPos(stale.to, -1) };
  if (transaction.effects.some((effect) => effect.is(generated)) || startState.field(tokenField).ranges.size === 0) return old;
  let first = Infinity;
  changes.iterChangedRanges((_from, _to, newFrom) => (first = Math.min(first, newFrom)));
  const end = transaction.newDoc.length;
  const from = Math.min(first, old ? old.from : first);
  return from < end ? { from, to: end } : old;
}

/** What undo has to restore: the tokens that a change removes. */
const undoable = invertedEffects.of((transaction) => {
  const { ranges, stale } = transaction.startState.field(tokenField);
  const lost: PlacedToken[] = [];
  transaction.changes.iterChangedRanges((from, to) => {
    ranges.between(from, to, (start, end, value) => {
      if (end > from && start < to) lost.push(placed(start, end, value));
    });
  });
  const changed = stale !== transaction.state.field(tokenField).stale;
  return lost.length > 0 || (transaction.docChanged && changed) ? [addTokens.of({ tokens: lost, stale })] : [];
});

function placed(from: number, to: number, { token, isGenerated }: TokenRange): PlacedToken {
  return { token: { ...token, from, to }, isGenerated };
}

const shadingField = StateField.define<Shading>({
  create: () => "probability",
  update: (shading, transaction) => transaction.effects.reduce((now, effect) => (effect.is(setShading) ? effect.value : now), shading),
});

const MARKS = new Map<string, Decoration>();

function mark(className: string): Decoration {
  let found = MARKS.get(className);
  if (!found) MARKS.set(className, (found = Decoration.mark({ class: className })));
  return found;
}

const shadingPlugin = ViewPlugin.fromClass(
  class {
    decorations: DecorationSet;
    constructor(view: EditorView) {
      this.decorations = decorate(view);
    }
    update({ view, state, startState, viewportChanged }: ViewUpdate) {
      const changed = state.field(tokenField) !== startState.field(tokenField) || state.field(shadingField) !== startState.field(shadingField);
      if (changed || viewportChanged) this.decorations = decorate(view);
    }
  },
  { decorations: (plugin) => plugin.decorations },
);

function decorate(view: EditorView): DecorationSet {
  const { ranges, stale } = view.state.field(tokenField);
  const shading = view.state.field(shadingField);
  const builder = new RangeSetBuilder<Decoration>();
  let last = -1;
  for (const { from, to } of view.visibleRanges) {
    ranges.between(from, to, (start, end, value) => {
      if (start < last) return;
      last = end;
      const isStale = stale !== null && end > stale.from && start < stale.to;
      const name = className(value, isStale ? "plain" : shading);
      if (name) builder.add(start, end, mark(name));
    });
  }
  return builder.finish();
}

function className({ token, isGenerated }: TokenRange, shading: Shading): string {
  const names = isGenerated ? ["generated"] : [];
  if (shading !== "plain" && token.logprob !== null) {
    names.push(shading === "probability" ? `p${probabilityClass(token.logprob)}` : `s${surpriseClass(token.logprob)}`);
  }
  return names.join(" ");
}

export const tokenExtension: Extension = [tokenField, undoable, shadingField, shadingPlugin];

/** Returns the token at a position, and whether its probabilities still hold. */
export function tokenAt(view: EditorView, position: number): (PlacedToken & { isStale: boolean }) | null {
  const { ranges, stale } = view.state.field(tokenField);
  let found: (PlacedToken & { isStale: boolean }) | null = null;
  ranges.between(position, position, (from, to, value) => {
    if (from > position || to < position || (to === position && found)) return;
    found = { ...placed(from, to, value), isStale: stale !== null && to > stale.from && from < stale.to };
  });
  return found;
}

/** Returns all tokens in order. */
export function allTokens(view: EditorView): PlacedToken[] {
  const tokens: PlacedToken[] = [];
  for (const cursor = view.state.field(tokenField).ranges.iter(); cursor.value; cursor.next()) {
    tokens.push(placed(cursor.from, cursor.to, cursor.value));
  }
  return tokens;
}
