/** What is open and what is announced. */
import { effect, signal } from "@preact/signals";
import { ApiError } from "../api/client";
import type { Shading } from "../editor/tokens";

export type View = "write" | "compare" | "tokens";
export type Panel = "settings" | "tree" | "candidates";
export type Dialog = "help" | "copy" | "key" | null;
export type Theme = "system" | "light" | "dark";

export const view = signal<View>(location.pathname.endsWith("/tokenizer") ? "tokens" : "write");
export const panel = signal<Panel>("settings");
export const dialog = signal<Dialog>(null);
export const shading = signal<Shading>("probability");
export const theme = signal<Theme>(stored("theme") === "light" ? "light" : stored("theme") === "dark" ? "dark" : "system");
/** Read aloud by screen readers. */
export const announcement = signal("");
export const notice = signal("");

export interface Problem {
  message: string;
  /** The parameter that is wrong, if the server named one. */
  param: string | null;
}
export const problem = signal<Problem | null>(null);

effect(() => {
  document.documentElement.dataset.theme = theme.value;
  store("theme", theme.value);
});

/** Shows an error in place; a request without a valid key opens the key field. Aborted requests are not errors. */
export function showError(error: unknown): void {
  if (error instanceof DOMException && error.name === "AbortError") return;
  if (error instanceof ApiError && error.status === 401) dialog.value = "key";
  const wait = error instanceof ApiError && error.retryAfter ? ` Try again in ${error.retryAfter} seconds.` : "";
  const message = error instanceof Error ? error.message : String(error);
  problem.value = { message: message + wait, param: error instanceof ApiError ? error.param : null };
}

export function announce(text: string): void {
  announcement.value = text;
}

/** Browsers may refuse storage; the page works without. */
export function stored(name: string): string | null {
  try {
    return localStorage.getItem(`onward-${name}`);
  } catch {
    return null;
  }
}

export function store(name: string, value: string): void {
  try {
    localStorage.setItem(`onward-${name}`, value);
  } catch {
    // private windows
  }
}
