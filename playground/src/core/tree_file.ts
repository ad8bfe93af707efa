/** The tree as JSON: for files that are exported and imported, and for the browser's database. */
import { type Tree, type TreeNode } from "./tree";
import type { Token } from "./tokens";

const FORMAT = "onward-tree";
const MAX_NODES = 100_000;

export interface TreeFile {
  format: typeof FORMAT;
  version: 1;
  nodes: TreeNode[];
}

export function toFile(tree: Tree): TreeFile {
  return { format: FORMAT, version: 1, nodes: [...tree.nodes.values()] };
}

/** Returns a file's tree: its nodes are numbered from 1 in their order. Throws an Error that says what is wrong. */
export function fromFile(file: unknown): Tree {
  const found = checked(file);
  const ids = new Map(found.map((node, index) => [node.id, index + 1]));
  const nodes = new Map<number, TreeNode>();
  for (const node of found) {
    const id = ids.get(node.id) as number;
    const parent = node.parent === null ? null : ids.get(node.parent);
    if (parent === undefined || (parent !== null && parent === id)) throw new Error("This file's tree is broken: a node's parent is missing.");
    nodes.set(id, { ...node, id, parent });
  }
  const merged = { nodes, nextId: found.length + 1 };
  const rooted = new Set<number>();
  for (const node of nodes.values()) checkRoot(merged, node, rooted);
  return merged;
}

function checked(file: unknown): TreeNode[] {
  const { format, version, nodes } = (file ?? {}) as Partial<TreeFile>;
  if (format !== FORMAT || !Array.isArray(nodes)) throw new Error("This is not a tree that the playground exported.");
  if (version !== 1) throw new Error(`This file has version ${String(version)}; this page reads version 1.`);
  if (nodes.length > MAX_NODES) throw new Error(`This file has more than ${MAX_NODES} nodes.`);
  const found = nodes.map(node);
  if (new Set(found.map((each) => each.id)).size < found.length) throw new Error("This file's tree is broken: two nodes have the same id.");
  return found;
}

function node(value: TreeNode): TreeNode {
  const isNode = Number.isInteger(value?.id) && typeof value.text === "string" && (value.parent === null || Number.isInteger(value.parent));
  if (!isNode) throw new Error("This file's tree is broken: a node has no id, parent or text.");
  return {
    id: value.id,
    parent: value.parent,
    origin: value.origin === "generated" ? "generated" : "written",
    text: value.text,
    ...(Array.isArray(value.tokens) ? { tokens: value.tokens.filter((token) => isToken(token, value.text.length)) } : {}),
    ...(value.run && typeof value.run === "object" ? { run: value.run } : {}),
    ...(typeof value.name === "string" ? { name: value.name.slice(0, 200) } : {}),
    ...(value.isBookmarked === true ? { isBookmarked: true } : {}),
  };
}

function isToken(token: Token, length: number): boolean {
  const isPlaced = Number.isInteger(token?.from) && Number.isInteger(token.to) && token.from >= 0 && token.from < token.to && token.to <= length;
  return isPlaced && typeof token.text === "string" && Array.isArray(token.ids) && Array.isArray(token.alternatives) && (token.logprob === null || typeof token.logprob === "number");
}

/** Throws unless a root is above `start`. `rooted` holds the nodes that are known to have one; it grows. */
function checkRoot(tree: Tree, start: TreeNode, rooted: Set<number>): void {
  const way = new Set<number>();
  for (let node: TreeNode | undefined = start; node && !rooted.has(node.id); ) {
    if (way.has(node.id)) throw new Error("This file's tree is broken: it has a cycle.");
    way.add(node.id);
    node = node.parent === null ? undefined : tree.nodes.get(node.parent);
  }
  for (const id of way) rooted.add(id);
}
