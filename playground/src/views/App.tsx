/** The whole page: a bar, one view, dialogs, and what screen readers announce. */
import { announcement, dialog, isWide, view } from "../state/page";
import { Bar } from "./Bar";
import { CandidatesDialog } from "./CandidatesPanel";
import { CompareView } from "./CompareView";
import { CopyDialog } from "./CopyDialog";
import { HelpDialog } from "./HelpDialog";
import { KeyDialog } from "./KeyDialog";
import { useShortcuts } from "./shortcuts";
import { SidePanel } from "./SidePanel";
import { StoriesDialog } from "./StoriesDialog";
import { TemplateDialog } from "./TemplateDialog";
import { TokensView } from "./TokensView";
import { TreePanel } from "./TreePanel";
import { WriteView } from "./WriteView";

export function App() {
  useShortcuts();
  return (
    <>
      <Bar />
      <main class={`view-${view.value}`}>
        <div hidden={view.value !== "write"} class="write">
          {isWide.value && (
            <aside class="side left" aria-label="Tree">
              <TreePanel />
            </aside>
          )}
          <WriteView />
          <SidePanel />
        </div>
        {view.value === "compare" && <CompareView />}
        {view.value === "tokens" && <TokensView />}
      </main>
      {dialog.value === "help" && <HelpDialog />}
      {dialog.value === "copy" && <CopyDialog />}
      {dialog.value === "key" && <KeyDialog />}
      {dialog.value === "stories" && <StoriesDialog />}
      {dialog.value === "template" && <TemplateDialog />}
      {dialog.value === "candidates" && <CandidatesDialog />}
      <div class="visually-hidden" role="status" aria-live="polite">
        {announcement}
      </div>
    </>
  );
}
