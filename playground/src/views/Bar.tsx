/** The bar at the top: views, model, and a menu of what is seldom changed. */
import { computed } from "@preact/signals";
import { model, selectModel } from "../state/access";
import { text } from "../state/document";
import { dialog, problem, theme, view, type Dialog, type View } from "../state/page";
import { start } from "../state/start";
import type { Theme } from "../state/storage";
import { shownTitle, startOf, title } from "../state/stories";
import { Menu } from "./Menu";
import { ModelSelect } from "./ModelSelect";

const VIEWS: [View, string][] = [
  ["write", "Write"],
  ["compare", "Compare"],
  ["tokens", "Tokens"],
];

const firstWords = computed(() => startOf(text.value.slice(0, 1000)));

/** An error belongs to the view that it came from. */
function show(name: View): void {
  if (name !== view.value) problem.value = null;
  view.value = name;
}

/** Dialogs show what goes wrong in them, not what went wrong before. */
function open(name: Dialog): void {
  problem.value = null;
  dialog.value = name;
}

export function Bar() {
  return (
    <header class="bar">
      <h1 title={`Onward ${start.version}`}>Onward</h1>
      <button type="button" class="quiet story-title" title="All stories" onClick={() => open("stories")}>
        <span class="visually-hidden">Stories: </span>
        <span class="title">{shownTitle({ title: title.value, start: firstWords.value })}</span> ▾
      </button>
      <nav aria-label="Views">
        {VIEWS.map(([name, label]) => (
          <button key={name} type="button" aria-current={view.value === name ? "page" : undefined} onClick={() => show(name)}>
            {label}
          </button>
        ))}
      </nav>
      <span class="spacer" />
      <label class="model">
        <span class="visually-hidden">Model</span>
        <ModelSelect selected={model.value} onSelect={(name) => void selectModel(name)} />
      </label>
      <Menu label="Page" face="☰" class="quiet">
        {VIEWS.map(([name, label]) => (
          <button key={name} type="button" class="cramped" aria-current={view.value === name ? "page" : undefined} onClick={() => show(name)}>
            {label}
          </button>
        ))}
        <label class="row">
          Theme
          <select value={theme.value} onChange={(event) => (theme.value = event.currentTarget.value as Theme)}>
            <option value="system">Auto</option>
            <option value="light">Light</option>
            <option value="dark">Dark</option>
          </select>
        </label>
        {start.requiresKey && (
          <button type="button" onClick={() => open("key")}>
            API key…
          </button>
        )}
        <button type="button" onClick={() => open("help")}>
          Help and keys <kbd>?</kbd>
        </button>
        {start.hasLedger && <a href="usage">Usage</a>}
        <a href="docs">API reference</a>
        {model.value === "storyteller" && (
          <p class="hint">
            storyteller is a toy that is built in. A real small model (98 MB, downloaded once): <code>{start.realModelCommand}</code>
          </p>
        )}
      </Menu>
    </header>
  );
}
