/** How a tree is drawn, as version control draws branches: a row per node, a lane per branch that is still open. */
import type { TreeNode } from "./tree";

export const MAX_LANES = 8;

export interface GraphRow {
  node: TreeNode;
  lane: number;
  /** Lanes beside the node's that go on to a later row, with the node that they lead to. */
  open: readonly { lane: number; to: number }[];
  /** Where the line from the parent comes from; null for a root. */
  parentLane: number | null;
  hasChildren: boolean;
}

/**
 * Returns the rows of a tree, children below their parents, at most `limit`. The last child stays in its parent's lane;
 * the others, which are older, branch off to the right. So a long text runs straight down, whatever was tried beside it.
 */
export function graphRows(index: ReadonlyMap<number | null, readonly TreeNode[]>, limit: number): { rows: GraphRow[]; isCut: boolean } {
  const rows: GraphRow[] = [];
  const waiting = [...(index.get(null) ?? [])].reverse().map((node): Omit<GraphRow, "hasChildren"> => ({ node, lane: 0, open: [], parentLane: null }));
  for (let row = waiting.pop(); row; row = waiting.pop()) {
    if (rows.length === limit) return { rows, isCut: true };
    const children = index.get(row.node.id) ?? [];
    const { lane, open } = row;
    rows.push({ ...row, hasChildren: children.length > 0 });
    const last = children.at(-1);
    for (const node of children.toReversed()) {
      const isBranch = last !== undefined && node !== last && lane + 1 < MAX_LANES;
      waiting.push({ node, lane: isBranch ? lane + 1 : lane, open: isBranch ? [...open, { lane, to: last.id }] : open, parentLane: lane });
    }
  }
  return { rows, isCut: false };
}
