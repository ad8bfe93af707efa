/** The generated texts that continue the same place: while they stream, then to choose from. */
import { sharedLengths } from "../core/difference";
import type { TreeNode } from "../core/tree";
import { isRunning, live, turnTo, versions } from "../state/actions";
import { tree } from "../state/document";
import { dialog } from "../state/page";
import { ModalDialog } from "./ModalDialog";

export function CandidatesPanel() {
  const hasSeveral = versions.value.ids.length > 1 && !isRunning.value;
  return (
    <>
      {hasSeveral && (
        <button type="button" class="quiet" onClick={() => (dialog.value = "candidates")}>
          Side by side
        </button>
      )}
      <Candidates />
    </>
  );
}

/** Over the page, as wide as it is. */
export function CandidatesDialog() {
  return (
    <ModalDialog title="Versions side by side" isWide>
      <Candidates onChosen={() => (dialog.value = null)} />
    </ModalDialog>
  );
}

function Candidates({ onChosen }: { onChosen?: () => void }) {
  if (isRunning.value && live.value.length > 0) {
    return (
      <ol class="candidates">
        {live.value.map((choice, index) => choice && <li key={index}>{choice.text}</li>)}
      </ol>
    );
  }
  const { at, ids } = versions.value;
  const nodes = ids.flatMap((id) => tree.value.nodes.get(id) ?? []);
  if (nodes.length === 0) {
    return <p class="hint">Set n to generate several candidates at once, or press Another: they are shown side by side here.</p>;
  }
  const shared = sharedLengths(nodes.map((node) => node.text));
  const choose = (id: number) => {
    turnTo(id);
    onChosen?.();
  };
  return (
    <ol class="candidates">
      {nodes.map((node, index) => (
        <li key={node.id} class={index === at ? "on-path" : ""}>
          <p>
            <span class="shared">{node.text.slice(0, shared[index])}</span>
            {node.text.slice(shared[index])}
          </p>
          <div class="facts">
            <span class="hint">{facts(node)}</span>
            <button type="button" disabled={isRunning.value} aria-current={index === at ? "true" : undefined} onClick={() => choose(node.id)}>
              {index === at ? "Shown" : "Show"}
            </button>
          </div>
        </li>
      ))}
    </ol>
  );
}

function facts({ run, tokens = [] }: TreeNode): string {
  const known = tokens.filter((token) => token.logprob !== null);
  const mean = known.reduce((sum, token) => sum + (token.logprob ?? 0), 0) / known.length;
  return [run && run.seed !== null && `seed ${run.seed}`, known.length > 0 && `mean log probability ${mean.toFixed(2)}`].filter(Boolean).join(" · ");
}
