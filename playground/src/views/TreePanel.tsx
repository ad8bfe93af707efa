/** Every version of every text, as an outline: the document's own path is marked. */
import { computed, signal } from "@preact/signals";
import { childIndex, type TreeNode } from "../core/tree";
import { visible } from "../core/tokens";
import { canRun } from "../state/actions";
import { current, exportTree, importTree, path, remove, rename, select, toggleBookmark, tree } from "../state/document";

const index = computed(() => childIndex(tree.value));
const onPath = computed(() => new Set(path.value.map((node) => node.id)));
const onlyBookmarks = signal(false);
const renaming = signal<number | null>(null);
const MAX_SHOWN = 500;

export function TreePanel() {
  const bookmarks = [...tree.value.nodes.values()].filter((node) => node.isBookmarked);
  return (
    <div class="tree">
      <div class="toolbar">
        <label class="check">
          <input type="checkbox" checked={onlyBookmarks.value} onChange={(event) => (onlyBookmarks.value = event.currentTarget.checked)} />
          Bookmarks ({bookmarks.length})
        </label>
        <span class="spacer" />
        <button type="button" onClick={download}>
          Export
        </button>
        <label class="button">
          Import
          <input class="visually-hidden" type="file" accept="application/json,.json" onChange={upload} />
        </label>
      </div>
      {tree.value.nodes.size === 0 && <p class="hint">Every text that you write or generate will be a node here.</p>}
      {onlyBookmarks.value ? (
        <ul>
          {bookmarks.map((node) => (
            <li key={node.id}>
              <Row node={node} />
            </li>
          ))}
        </ul>
      ) : (
        <Outline roots={index.value.get(null) ?? []} />
      )}
    </div>
  );
}

interface Line {
  node: TreeNode;
  depth: number;
}

/** A list with indents: chains of single children stay on one level, so that long texts do not drift to the right. */
function Outline({ roots }: { roots: readonly TreeNode[] }) {
  const { lines, isCut } = linesOf(roots);
  return (
    <>
      <ul>
        {lines.map(({ node, depth }) => (
          <li key={node.id} class={`depth-${Math.min(depth, 8)}`}>
            <Row node={node} />
          </li>
        ))}
      </ul>
      {isCut && <p class="hint">Only the first {MAX_SHOWN} nodes are listed. Remove some, or export the tree.</p>}
    </>
  );
}

function linesOf(roots: readonly TreeNode[]): { lines: Line[]; isCut: boolean } {
  const lines: Line[] = [];
  const waiting: Line[] = [...roots].reverse().map((node) => ({ node, depth: 0 }));
  for (let next = waiting.pop(); next && lines.length < MAX_SHOWN; next = waiting.pop()) {
    lines.push(next);
    const children = index.value.get(next.node.id) ?? [];
    const depth = children.length > 1 ? next.depth + 1 : next.depth;
    waiting.push(...[...children].reverse().map((node) => ({ node, depth })));
  }
  return { lines, isCut: waiting.length > 0 };
}

function Row({ node }: { node: TreeNode }) {
  const isCurrent = current.value === node.id;
  const label = node.name || excerpt(node.text);
  return (
    <div class={`node ${node.origin} ${onPath.value.has(node.id) ? "on-path" : ""}`}>
      {renaming.value === node.id ? (
        <NameField node={node} />
      ) : (
        <button type="button" class="node-text" aria-current={isCurrent ? "true" : undefined} title={title(node)} disabled={!canRun.value} onClick={() => select(node.id)}>
          {label}
        </button>
      )}
      <span class="node-actions">
        <button type="button" aria-pressed={node.isBookmarked === true} aria-label={`Bookmark ${label}`} onClick={() => toggleBookmark(node.id)}>
          {node.isBookmarked ? "★" : "☆"}
        </button>
        <button type="button" aria-label={`Rename ${label}`} onClick={() => (renaming.value = node.id)}>
          ✎
        </button>
        <button type="button" aria-label={`Remove ${label}`} disabled={!canRun.value} onClick={() => remove(node.id)}>
          ×
        </button>
      </span>
    </div>
  );
}

function NameField({ node }: { node: TreeNode }) {
  const finish = (name: string | null) => {
    if (renaming.value !== node.id) return;
    renaming.value = null;
    if (name !== null) rename(node.id, name);
  };
  return (
    <input
      class="node-text"
      aria-label="Name"
      ref={(element) => element?.focus()}
      defaultValue={node.name ?? ""}
      onBlur={(event) => finish(event.currentTarget.value)}
      onKeyDown={(event) => {
        if (event.key === "Enter") finish(event.currentTarget.value);
        if (event.key === "Escape") finish(null);
      }}
    />
  );
}

function excerpt(text: string): string {
  const start = text.trimStart().slice(0, 80);
  return start.replaceAll("\n", " ") || visible(text.slice(0, 12));
}

function title(node: TreeNode): string {
  return node.run ? `${node.run.model}, seed ${node.run.seed}, ended by ${node.run.finish || "you"}` : "written";
}

function download(): void {
  const url = URL.createObjectURL(new Blob([exportTree()], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = "onward-tree.json";
  link.click();
  URL.revokeObjectURL(url);
}

async function upload(event: Event): Promise<void> {
  const input = event.currentTarget as HTMLInputElement;
  const file = input.files?.[0];
  if (file) importTree(await file.text());
  input.value = "";
}
