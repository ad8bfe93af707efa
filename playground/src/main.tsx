/** Starts the page. */
import { render } from "preact";
import "./theme.css";
import "./style.css";
import { followModels, loadModels } from "./state/access";
import { openPermalink } from "./state/sharing";
import { keepStories } from "./state/stories";
import { start } from "./state/start";
import { dialog, followKeyboard } from "./state/page";
import { App } from "./views/App";

async function main(): Promise<void> {
  const listed = loadModels();
  await keepStories(); // a few milliseconds; the editor begins with what was kept
  followKeyboard();
  followModels();
  const root = document.getElementById("app");
  if (root) render(<App />, root);
  if (!(await listed) && start.requiresKey) dialog.value = "key";
  await openPermalink();
  addEventListener("hashchange", () => void openPermalink());
  document.documentElement.dataset.ready = "true";
}

void main();
