/** Starts the page of usage. */
import { render } from "preact";
import "./theme.css";
import "./usage.css";
import { showTheme, storedTheme } from "./state/storage";
import { load } from "./state/usage";
import { UsageView } from "./views/UsageView";

showTheme(storedTheme());
const root = document.getElementById("usage");
if (root) {
  root.textContent = "";
  render(<UsageView />, root);
}
void load().then(() => (document.documentElement.dataset.ready = "true"));
