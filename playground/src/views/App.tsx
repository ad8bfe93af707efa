/** The whole page: a bar, one view, dialogs, and what screen readers announce. */
import { announcement, dialog, panel, view } from "../state/page";
import { Bar } from "./Bar";
import { CompareView } from "./CompareView";
import { CopyDialog } from "./CopyDialog";
import { HelpDialog } from "./HelpDialog";
import { KeyDialog } from "./KeyDialog";
import { useShortcuts } from "./shortcuts";
import { SidePanel } from "./SidePanel";
import { TokensView } from "./TokensView";
import { WriteView } from "./WriteView";

export function App() {
  useShortcuts();
  return (
    <>
      <Bar />
      <main class={`view-${view.value}`}>
        <div hidden={view.value !== "write"} class="write">
          <WriteView />
          <SidePanel selected={panel} />
        </div>
        {view.value === "compare" && <CompareView />}
        {view.value === "tokens" && <TokensView />}
      </main>
      {dialog.value === "help" && <HelpDialog />}
      {dialog.value === "copy" && <CopyDialog />}
      {dialog.value === "key" && <KeyDialog />}
      <div class="visually-hidden" role="status" aria-live="polite">
        {announcement}
      </div>
    </>
  );
}
