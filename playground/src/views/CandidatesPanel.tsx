/** The generated texts that continue the same place, side by side: while they stream, then to choose from. */
import { childrenOf, type TreeNode } from "../core/tree";
import { choose, isRunning, live } from "../state/actions";
import { path, tree } from "../state/document";

export function CandidatesPanel() {
  if (isRunning.value && live.value.length > 0) {
    return (
      <ol class="candidates">
        {live.value.map((choice, index) => choice && <li key={index}>{choice.text}</li>)}
      </ol>
    );
  }
  const last = [...path.value].reverse().find((node) => node.origin === "generated");
  const siblings = last ? childrenOf(tree.value, last.parent).filter((node) => node.origin === "generated") : [];
  if (!last || siblings.length === 0) {
    return <p class="hint">Set n to generate several candidates at once, or press Another: they are shown side by side here.</p>;
  }
  return (
    <ol class="candidates">
      {siblings.map((node) => (
        <li key={node.id} class={node.id === last.id ? "on-path" : ""}>
          <p>{node.text}</p>
          <footer>
            <span class="hint">{facts(node)}</span>
            <button type="button" disabled={isRunning.value} aria-current={node.id === last.id ? "true" : undefined} onClick={() => choose(node.id)}>
              {node.id === last.id ? "Shown" : "Show"}
            </button>
          </footer>
        </li>
      ))}
    </ol>
  );
}

function facts({ run, tokens = [] }: TreeNode): string {
  const known = tokens.filter((token) => token.logprob !== null);
  const mean = known.reduce((sum, token) => sum + (token.logprob ?? 0), 0) / known.length;
  return [run && `seed ${run.seed}`, known.length > 0 && `mean log probability ${mean.toFixed(2)}`].filter(Boolean).join(" · ");
}
