/** The editor as the rest of the page sees it: a text with tokens. It knows nothing of requests or trees. */
import { defaultKeymap, history, historyKeymap, isolateHistory, redo, undo } from "@codemirror/commands";
import { Annotation, Compartment, EditorState, Transaction, type Extension } from "@codemirror/state";
import { EditorView, drawSelection, highlightSpecialChars, keymap, placeholder } from "@codemirror/view";
import type { Token } from "../core/tokens";
import { leftOut, setCut } from "./left_out";
import { addTokens, allTokens, generated, setShading, tokenAt, tokenExtension, type PlacedToken, type Shading } from "./tokens";

const UNDO_GROUP_MS = 500;
const CARET_MARGIN_PX = 24;
/** The generation that a transaction belongs to: undo takes it back as a whole. */
const generation = Annotation.define<number>();

export interface EditorOptions {
  parent: HTMLElement;
  nonce: string;
  label: string;
  onChange: (isTyped: boolean) => void;
  extensions?: Extension;
}

export class Editor {
  readonly view: EditorView;
  private readonly writable = new Compartment();
  private readonly extensions: Extension;
  private shading: Shading = "plain";
  private lastRun = 0;
  private lastChange = 0;

  constructor({ parent, nonce, label, onChange, extensions = [] }: EditorOptions) {
    const listener = EditorView.updateListener.of((update) => {
      this.remember(update.transactions);
      if (update.docChanged) onChange(!update.transactions.some((each) => each.annotation(generation) !== undefined));
    });
    this.extensions = [
      EditorView.cspNonce.of(nonce),
      EditorState.lineSeparator.of("\n"), // every character counts, also a carriage return
      EditorView.clipboardInputFilter.of((text) => text.replace(/\r\n?/g, "\n")),
      EditorView.lineWrapping,
      EditorView.contentAttributes.of({ "aria-label": label, tabindex: "0", spellcheck: "true", autocapitalize: "sentences" }),
      highlightSpecialChars(),
      drawSelection(),
      placeholder("Write a beginning…"),
      history({ newGroupDelay: Infinity, joinToEvent: (transaction, isAdjacent) => this.joins(transaction, isAdjacent) }),
      extensions,
      keymap.of([...historyKeymap, ...defaultKeymap]),
      tokenExtension,
      leftOut,
      this.writable.of(EditorState.readOnly.of(false)),
      listener,
    ];
    this.view = new EditorView({ parent, state: EditorState.create({ extensions: this.extensions }) });
    this.resized.observe(this.view.scrollDOM);
  }

  /** Where the room shrinks, such as when a soft keyboard opens, the caret stays visible. */
  private readonly resized = new ResizeObserver(() => {
    const { clientHeight } = this.view.scrollDOM;
    if (clientHeight < this.height && this.view.hasFocus) this.view.dispatch({ effects: EditorView.scrollIntoView(this.cursor, { yMargin: CARET_MARGIN_PX }) });
    this.height = clientHeight;
  });
  private height = 0;

  /** Whether undo takes a change back together with the one before it. */
  private joins(transaction: Transaction, isAdjacent: boolean): boolean {
    const run = transaction.annotation(generation) ?? 0;
    if (run !== this.lastRun) return false;
    return run > 0 || (isAdjacent && timeOf(transaction) - this.lastChange < UNDO_GROUP_MS);
  }

  private remember(transactions: readonly Transaction[]): void {
    for (const transaction of transactions) {
      if (!transaction.docChanged) continue;
      this.lastRun = transaction.annotation(generation) ?? 0;
      this.lastChange = timeOf(transaction);
    }
  }

  get text(): string {
    return this.view.state.doc.toString();
  }

  get cursor(): number {
    return this.view.state.selection.main.head;
  }

  get tokens(): PlacedToken[] {
    return allTokens(this.view);
  }

  tokenAt(position: number) {
    return tokenAt(this.view, position);
  }

  /** Inserts generated text with its tokens, whose positions are in the document that results. */
  insert(at: number, text: string, tokens: readonly Token[], run: number): void {
    const { view } = this;
    const isFollowed = this.cursor === at;
    view.dispatch({
      changes: { from: at, insert: text },
      ...(isFollowed ? { selection: { anchor: at + text.length }, scrollIntoView: true } : {}),
      effects: [generated.of(run), addTokens.of({ tokens: tokens.map((token) => ({ token, isGenerated: true })) })],
      annotations: [generation.of(run), Transaction.userEvent.of("input.type.generate")],
    });
  }

  /** Begins with another document: undo does not lead back to the one before. */
  open(text: string, tokens: readonly PlacedToken[]): void {
    const { view } = this;
    view.setState(EditorState.create({ doc: text, selection: { anchor: text.length }, extensions: this.extensions }));
    view.dispatch({ effects: [addTokens.of({ tokens: [...tokens], replace: true }), setShading.of(this.shading), EditorView.scrollIntoView(text.length)] });
  }

  /** Replaces the whole document; undo takes it back in one step. */
  setDocument(text: string, tokens: readonly PlacedToken[]): void {
    const { view } = this;
    const start = commonPrefix(this.text, text);
    view.dispatch({
      changes: { from: start, to: view.state.doc.length, insert: text.slice(start) },
      selection: { anchor: text.length },
      effects: addTokens.of({ tokens: [...tokens], replace: true }),
      annotations: [generation.of(0), isolateHistory.of("full")],
      scrollIntoView: true,
    });
  }

  /** Adds text at the end as if it was typed, and puts the cursor behind it. */
  append(text: string): void {
    const end = this.view.state.doc.length;
    this.view.dispatch({ changes: { from: end, insert: text }, selection: { anchor: end + text.length }, annotations: isolateHistory.of("full"), scrollIntoView: true });
  }

  /** Replaces all tokens, such as after a text was scored. */
  setTokens(tokens: readonly PlacedToken[]): void {
    this.view.dispatch({ effects: addTokens.of({ tokens: [...tokens], replace: true }) });
  }

  /** Marks the text before a position as left out of what is sent. */
  setCut(position: number): void {
    this.view.dispatch({ effects: setCut.of(position) });
  }

  setShading(shading: Shading): void {
    this.shading = shading;
    this.view.dispatch({ effects: setShading.of(shading) });
  }

  setReadOnly(isReadOnly: boolean): void {
    this.view.dispatch({ effects: this.writable.reconfigure(EditorState.readOnly.of(isReadOnly)) });
  }

  setCursor(position: number): void {
    this.view.dispatch({ selection: { anchor: position }, scrollIntoView: true });
  }

  undo(): boolean {
    return undo(this.view);
  }

  redo(): boolean {
    return redo(this.view);
  }

  focus(): void {
    this.view.focus();
  }

  destroy(): void {
    this.resized.disconnect();
    this.view.destroy();
  }
}

function timeOf(transaction: Transaction): number {
  return transaction.annotation(Transaction.time) ?? 0;
}

function commonPrefix(one: string, other: string): number {
  const limit = Math.min(one.length, other.length);
  let length = 0;
  while (length < limit && one.charCodeAt(length) === other.charCodeAt(length)) length += 1;
  return length;
}
