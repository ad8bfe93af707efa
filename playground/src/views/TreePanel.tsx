/** Every version of the text as a tree: branches are lines, the document's own path is marked. */
import { computed, signal } from "@preact/signals";
import { childIndex, type TreeNode } from "../core/tree";
import { visible } from "../core/tokens";
import { graphRows, type GraphRow } from "../core/tree_graph";
import { canRun, removeNode, turnTo } from "../state/actions";
import { current, path, rename, toggleBookmark, tree } from "../state/document";
import { Menu } from "./Menu";
import { TreeGraph } from "./TreeGraph";

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
        <Graph />
      )}
    </div>
  );
}

function Graph() {
  const { rows, isCut } = graphRows(index.value, MAX_SHOWN);
  return (
    <>
      <ul>
        {rows.map((row) => (
          <li key={row.node.id}>
            <Row node={row.node} row={row} />
          </li>
        ))}
      </ul>
      {isCut && <p class="hint">Only the first {MAX_SHOWN} nodes are drawn. Remove some, or export the tree.</p>}
    </>
  );
}

function Row({ node, row }: { node: TreeNode; row?: GraphRow }) {
  const isCurrent = current.value === node.id;
  const isOnPath = onPath.value.has(node.id);
  const label = node.name || excerpt(node.text);
  return (
    <div class={`node ${node.origin} ${isOnPath ? "on-path" : ""}`}>
      {row && <TreeGraph row={row} path={onPath.value} isCurrent={isCurrent} />}
      {renaming.value === node.id ? (
        <NameField node={node} />
      ) : (
        <button type="button" class="node-text" aria-current={isCurrent ? "true" : undefined} title={title(node)} disabled={!canRun.value} onClick={() => turnTo(node.id)}>
          {node.isBookmarked && "★ "}
          {label}
        </button>
      )}
      <Menu label={`Change ${label}`} face="⋯" class="icon node-menu">
        <button type="button" aria-pressed={node.isBookmarked === true} onClick={() => toggleBookmark(node.id)}>
          {node.isBookmarked ? "Remove the bookmark" : "Bookmark"}
        </button>
        <button type="button" onClick={() => (renaming.value = node.id)}>
          Rename
        </button>
        <button type="button" disabled={!canRun.value} onClick={() => removeNode(node.id)}>
          Remove
          <small>With everything that continues it</small>
        </button>
      </Menu>
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
  return node.run ? `${node.run.model}${node.run.seed === null ? "" : `, seed ${node.run.seed}`}, ended by ${node.run.finish || "you"}` : "written";
}
