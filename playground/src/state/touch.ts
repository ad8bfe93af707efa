/** Fingers on the document: a tap shows alternatives, holding a token the ways to ban or favour it, a swipe another version. */
import { again, canRun, turnTo, versions } from "./actions";
import { close, openAt, opened } from "./alternatives";

const HOLD_MS = 500;
const STILL_PX = 10;
const SWIPE_PX = 70;

let start: { x: number; y: number; at: number } | null = null;
let timer: ReturnType<typeof setTimeout> | undefined;
let wasHeld = false;

export function touchDown(event: PointerEvent): void {
  if (event.pointerType === "mouse") return;
  clearTimeout(timer);
  if (!event.isPrimary) {
    start = null; // two fingers zoom
    return;
  }
  if (opened.value) close();
  wasHeld = false;
  start = { x: event.clientX, y: event.clientY, at: event.timeStamp };
  const { clientX, clientY } = event;
  timer = setTimeout(() => {
    wasHeld = openAt(clientX, clientY, true);
  }, HOLD_MS);
}

export function touchMove(event: PointerEvent): void {
  if (start && distance(event, start) > STILL_PX) clearTimeout(timer);
}

export function touchUp(event: PointerEvent): void {
  clearTimeout(timer);
  const began = start;
  start = null;
  if (!began || wasHeld) return;
  const right = event.clientX - began.x;
  const isSwipe = Math.abs(right) > SWIPE_PX && Math.abs(event.clientY - began.y) < Math.abs(right) / 2;
  if (isSwipe) swipe(right < 0 ? 1 : -1);
  else if (distance(event, began) <= STILL_PX && event.timeStamp - began.at < HOLD_MS) openAt(event.clientX, event.clientY, false);
}

export function touchCancel(): void {
  clearTimeout(timer);
  start = null;
}

/** A held token must not open the browser's own menu over ours. */
export function onContextMenu(event: Event): void {
  if (wasHeld) event.preventDefault();
}

/** Shows the version before or after; behind the last one, another is generated. */
export function swipe(direction: -1 | 1): void {
  if (!canRun.value) return;
  const { at, ids } = versions.value;
  const next = ids[at + direction];
  if (next !== undefined) turnTo(next);
  else if (direction > 0 && ids.length > 0) void again(false);
}

function distance({ clientX, clientY }: PointerEvent, from: { x: number; y: number }): number {
  return Math.hypot(clientX - from.x, clientY - from.y);
}
