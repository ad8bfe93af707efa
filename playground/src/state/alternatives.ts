/** The token whose alternatives are shown, under the pointer or at the cursor. */
import { effect, signal } from "@preact/signals";
import type { Editor } from "../editor/editor";
import type { Token } from "../core/tokens";
import { proposal, isRunning } from "./actions";
import { shading } from "./page";

export interface Opened {
  token: Token;
  isStale: boolean;
  /** Where the token is on the screen. */
  left: number;
  bottom: number;
  top: number;
  /** Opened by the keyboard: takes the focus. */
  isFocused: boolean;
  /** Opened by a finger: stays until something else is touched. */
  isTouched?: boolean;
  /** Shows the ways to ban and favour the token first. */
  isHeld?: boolean;
}

export const opened = signal<Opened | null>(null);

const OPEN_DELAY_MS = 150;
const CLOSE_DELAY_MS = 250;
let editor: Editor | null = null;
let timer: ReturnType<typeof setTimeout> | undefined;
let stopShading = () => {};

export function editorMounted(mounted: Editor): void {
  editor = mounted;
  stopShading = effect(() => mounted.setShading(shading.value));
}

export function editorDiscarded(): void {
  stopShading();
  editor = null;
}

/** Shows the alternatives of the token that was touched; returns whether there is one. */
export function openAt(x: number, y: number, isHeld: boolean): boolean {
  const position = editor?.view.posAtCoords({ x, y });
  const found = position == null ? null : openedAt(position, false, x, y);
  if (found) open({ ...found, isTouched: true, isHeld });
  return found !== null;
}

export function followPointer(event: PointerEvent): void {
  if (event.pointerType !== "mouse") return;
  clearTimeout(timer);
  const { clientX: x, clientY: y } = event;
  timer = setTimeout(() => {
    const position = editor?.view.posAtCoords({ x, y });
    if (opened.value?.isFocused || shading.value === "plain") return;
    opened.value = position == null ? null : openedAt(position, false, x, y);
  }, OPEN_DELAY_MS);
}

export function leavePointer(event: PointerEvent): void {
  if (event.pointerType !== "mouse") return;
  clearTimeout(timer);
  if (!opened.value?.isFocused) timer = setTimeout(close, CLOSE_DELAY_MS);
}

/** The pointer is over the alternatives themselves: they stay. */
export function stay(): void {
  clearTimeout(timer);
}

/** Shows the alternatives of the token at or before the cursor. */
export function openAtCursor(): void {
  if (!editor) return;
  const found = openedAt(editor.cursor, true) ?? openedAt(Math.max(0, editor.cursor - 1), true);
  if (found) open(found);
}

/** Whatever the pointer did before neither opens others nor closes these. */
function open(found: Opened): void {
  clearTimeout(timer);
  opened.value = found;
}

export function close(): void {
  const wasFocused = opened.value?.isFocused;
  opened.value = null;
  if (wasFocused) editor?.focus();
}

/** Moves to the token before or after, for the keyboard. */
export function step(direction: -1 | 1): void {
  const now = opened.value;
  if (!now || !editor) return;
  const next = openedAt(direction < 0 ? now.token.from - 1 : now.token.to, true);
  if (next) opened.value = next;
}

/** With a place on the screen, returns only a token that lies there: the room below a text is nearest to its last one. */
function openedAt(position: number, isFocused: boolean, x?: number, y?: number): Opened | null {
  if (!editor || isRunning.value || proposal.value || position < 0) return null;
  const found = editor.tokenAt(position);
  if (!found || found.token.logprob === null) return null;
  const start = editor.view.coordsAtPos(found.token.from, 1);
  if (!start || (x !== undefined && x < start.left - 2 && found.token.from === position)) return null;
  const end = editor.view.coordsAtPos(found.token.to, -1);
  if (y !== undefined && (y < start.top || (end && y > end.bottom))) return null;
  return { token: found.token, isStale: found.isStale, left: start.left, top: start.top, bottom: start.bottom, isFocused };
}
