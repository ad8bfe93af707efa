/** What is open and what is announced. */
import { effect, signal } from "@preact/signals";
import { ApiError } from "../api/client";
import { WrongValue } from "../core/settings";
import type { Shading } from "../editor/tokens";
import { showTheme, store, stored, storedTheme, type Theme } from "./storage";

export type View = "write" | "compare" | "tokens";
export type Panel = "settings" | "context" | "tree" | "candidates" | "numbers";
export type Dialog = "help" | "copy" | "key" | "candidates" | "stories" | "template" | null;

export const view = signal<View>(location.pathname.endsWith("/tokenizer") ? "tokens" : "write");
export const panel = signal<Panel>("settings");
/** On small screens the panels are a sheet over the document. */
export const isSheetOpen = signal(false);
export const dialog = signal<Dialog>(null);
export const shading = signal<Shading>(oneOf<Shading>(stored("shading"), ["probability", "surprise"], "plain"));
export const theme = signal<Theme>(storedTheme());
/** Read aloud by screen readers. */
export const announcement = signal("");

export interface Notice {
  message: string;
  /** What can be done about it. */
  action?: { label: string; act: () => void };
}
export const notice = signal<Notice | null>(null);

export interface Problem {
  message: string;
  /** The parameter that is wrong, if one is named. */
  param: string | null;
}
export const problem = signal<Problem | null>(null);

const WIDE = matchMedia("(min-width: 96rem)");
/** Whether there is room for the tree beside document and settings. */
export const isWide = signal(WIDE.matches);
WIDE.addEventListener("change", () => (isWide.value = WIDE.matches));

effect(() => {
  showTheme(theme.value);
  store("theme", theme.value);
});
effect(() => store("shading", shading.value));

/** Keeps the page as high as what is visible of it: a soft keyboard covers neither caret nor toolbar. */
export function followKeyboard(): void {
  const visible = window.visualViewport;
  visible?.addEventListener("resize", () => {
    const isZoomed = visible.scale > 1.01;
    document.documentElement.style.setProperty("--height", isZoomed ? "" : `${visible.height}px`);
    if (!isZoomed) scrollTo(0, 0);
  });
}

/** Shows an error in place; a request without a valid key opens the key field. Aborted requests are not errors. */
export function showError(error: unknown): void {
  if (error instanceof DOMException && error.name === "AbortError") return;
  if (error instanceof ApiError && error.status === 401) dialog.value = "key";
  const wait = error instanceof ApiError && error.retryAfter ? ` Try again in ${error.retryAfter} seconds.` : "";
  const message = error instanceof Error ? error.message : String(error);
  problem.value = { message: message + wait, param: error instanceof ApiError || error instanceof WrongValue ? error.param : null };
}

export function announce(text: string): void {
  announcement.value = text;
}

/** Shows a notice, and has it read aloud. */
export function notify(message: string, action?: Notice["action"]): void {
  notice.value = action ? { message, action } : { message };
  announce(message);
}

function oneOf<T extends string>(value: string | null, choices: readonly T[], fallback: T): T {
  return choices.find((choice) => choice === value) ?? fallback;
}
