/** Settings, context, tree, candidates and numbers: beside the document, or on small screens a sheet over it. */
import { isSheetOpen, isWide, panel, type Panel } from "../state/page";
import { CandidatesPanel } from "./CandidatesPanel";
import { ContextPanel } from "./ContextPanel";
import { NumbersPanel } from "./NumbersPanel";
import { SettingsPanel } from "./SettingsPanel";
import { TreePanel } from "./TreePanel";

const PANELS: [Panel, string][] = [
  ["settings", "Settings"],
  ["context", "Context"],
  ["tree", "Tree"],
  ["candidates", "Candidates"],
  ["numbers", "Numbers"],
];

export function SidePanel() {
  const shown = PANELS.filter(([name]) => !(isWide.value && name === "tree"));
  const selected = shown.some(([name]) => name === panel.value) ? panel.value : "settings";
  return (
    <aside class={`side ${isSheetOpen.value ? "open" : ""}`} aria-label="Details" onKeyDown={(event) => event.key === "Escape" && (isSheetOpen.value = false)}>
      <div class="tabs">
        <div role="tablist" aria-label="Details" onKeyDown={(event) => move(event, shown, selected)}>
          {shown.map(([name, label]) => (
            <button
              key={name}
              type="button"
              role="tab"
              id={`tab-${name}`}
              aria-controls="side-panel"
              aria-selected={selected === name}
              tabIndex={selected === name ? 0 : -1}
              onClick={() => (panel.value = name)}
            >
              {label}
            </button>
          ))}
        </div>
        <button type="button" class="icon close" aria-label="Close the panels" onClick={() => (isSheetOpen.value = false)}>
          ×
        </button>
      </div>
      <div role="tabpanel" id="side-panel" aria-labelledby={`tab-${selected}`} tabIndex={0}>
        {selected === "settings" && <SettingsPanel />}
        {selected === "context" && <ContextPanel />}
        {selected === "tree" && <TreePanel />}
        {selected === "candidates" && <CandidatesPanel />}
        {selected === "numbers" && <NumbersPanel />}
      </div>
    </aside>
  );
}

function move(event: KeyboardEvent, shown: typeof PANELS, selected: Panel): void {
  const by = { ArrowRight: 1, ArrowLeft: shown.length - 1 }[event.key];
  if (by === undefined) return;
  event.preventDefault();
  const index = shown.findIndex(([name]) => name === selected);
  const next = shown[(index + by) % shown.length]?.[0] ?? "settings";
  panel.value = next;
  document.getElementById(`tab-${next}`)?.focus();
}
