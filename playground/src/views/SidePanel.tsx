/** Settings, tree and candidates beside the document. */
import type { Signal } from "@preact/signals";
import type { Panel } from "../state/page";
import { CandidatesPanel } from "./CandidatesPanel";
import { SettingsPanel } from "./SettingsPanel";
import { TreePanel } from "./TreePanel";

const PANELS: [Panel, string][] = [
  ["settings", "Settings"],
  ["tree", "Tree"],
  ["candidates", "Candidates"],
];

export function SidePanel({ selected }: { selected: Signal<Panel> }) {
  return (
    <aside class="side" aria-label="Details">
      <div class="tabs" role="tablist" aria-label="Details" onKeyDown={(event) => move(event, selected)}>
        {PANELS.map(([name, label]) => (
          <button
            key={name}
            type="button"
            role="tab"
            id={`tab-${name}`}
            aria-controls="side-panel"
            aria-selected={selected.value === name}
            tabIndex={selected.value === name ? 0 : -1}
            onClick={() => (selected.value = name)}
          >
            {label}
          </button>
        ))}
      </div>
      <div role="tabpanel" id="side-panel" aria-labelledby={`tab-${selected.value}`} tabIndex={0}>
        {selected.value === "settings" && <SettingsPanel />}
        {selected.value === "tree" && <TreePanel />}
        {selected.value === "candidates" && <CandidatesPanel />}
      </div>
    </aside>
  );
}

function move(event: KeyboardEvent, selected: Signal<Panel>): void {
  const by = { ArrowRight: 1, ArrowLeft: PANELS.length - 1 }[event.key];
  if (by === undefined) return;
  event.preventDefault();
  const index = PANELS.findIndex(([name]) => name === selected.value);
  const next = PANELS[(index + by) % PANELS.length]?.[0] ?? "settings";
  selected.value = next;
  document.getElementById(`tab-${next}`)?.focus();
}
