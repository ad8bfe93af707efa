/** Keys that work anywhere on the page. */
import { useLayoutEffect } from "preact/hooks";
import { accept, fillIn, generate, isRunning, proposal, reject, stop } from "../state/actions";
import { close, openAtCursor, opened } from "../state/alternatives";
import { dialog, view } from "../state/page";
import { swipe } from "../state/touch";

/** There, Option with an arrow moves by words in every text. */
const IS_MAC = /Mac/.test(navigator.platform);

export function useShortcuts(): void {
  // Not useEffect, which waits for a frame: a key pressed as soon as the page shows would be lost.
  useLayoutEffect(() => {
    document.addEventListener("keydown", onKeyDown, true);
    return () => document.removeEventListener("keydown", onKeyDown, true);
  }, []);
}

function onKeyDown(event: KeyboardEvent): void {
  if (dialog.value) return;
  const act = actionOf(event);
  if (!act) return;
  event.preventDefault();
  event.stopPropagation();
  act();
}

function actionOf(event: KeyboardEvent): (() => void) | null {
  const { key } = event;
  const isControl = event.ctrlKey || event.metaKey;
  if (key === "F1" || (key === "?" && !isTyping(event.target))) return () => (dialog.value = "help");
  if (view.value !== "write") return null;
  if (proposal.value && isInEditor(event.target)) {
    if (key === "Enter") return accept;
    if (key === "Escape") return reject;
  }
  if (key === "Escape" && isRunning.value) return stop;
  if (key === "Escape" && opened.value) return close; // wherever the focus is: a pointer may have opened it
  if (key === "Enter" && isControl) return () => void generate();
  if (key === "Enter" && event.altKey) return () => void fillIn();
  if (key === " " && isControl) return openAtCursor;
  if (event.altKey && !(IS_MAC && isTyping(event.target))) {
    if (key === "ArrowLeft") return () => swipe(-1);
    if (key === "ArrowRight") return () => swipe(1);
  }
  return null;
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || target.matches("input:not([type=radio],[type=checkbox],[type=range]), textarea, select"));
}

function isInEditor(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || target === document.body);
}
