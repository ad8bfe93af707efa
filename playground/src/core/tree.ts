/**
 * The tree of everything that was written and generated. A node continues its parent's text; a document is the text on
 * the way from a root to a node. Trees are immutable: every function returns another.
 */
import { tokensWithin, type Token } from "./tokens";
import type { Frame } from "./context";
import type { Until } from "./until";

export type Origin = "written" | "generated";

/** How a generated text came about. */
export interface Run {
  model: string;
  settings: Readonly<Record<string, unknown>>;
  seed: number | null;
  fingerprint: string;
  finish: string;
  suffix?: string;
  until?: Until;
  frame?: Frame;
}

export interface TreeNode {
  id: number;
  parent: number | null;
  origin: Origin;
  text: string;
  tokens?: readonly Token[];
  run?: Run;
  name?: string;
  isBookmarked?: boolean;
}

export interface Tree {
  nodes: ReadonlyMap<number, TreeNode>;
  nextId: number;
}

export const EMPTY_TREE: Tree = { nodes: new Map(), nextId: 1 };

/** A tree and a node of it: the result of whatever adds one. */
export interface Place {
  tree: Tree;
  id: number;
}

export function pathTo(tree: Tree, id: number | null): TreeNode[] {
  const path: TreeNode[] = [];
  for (let node = id === null ? undefined : tree.nodes.get(id); node; node = parentOf(tree, node)) path.push(node);
  return path.reverse();
}

function parentOf(tree: Tree, node: TreeNode): TreeNode | undefined {
  return node.parent === null ? undefined : tree.nodes.get(node.parent);
}

export function textAt(tree: Tree, id: number | null): string {
  return pathTo(tree, id).map((node) => node.text).join("");
}

export function childrenOf(tree: Tree, id: number | null): TreeNode[] {
  return [...tree.nodes.values()].filter((node) => node.parent === id);
}

/** Returns the children of every node in one pass; roots are those of null. */
export function childIndex(tree: Tree): Map<number | null, TreeNode[]> {
  const index = new Map<number | null, TreeNode[]>();
  for (const node of tree.nodes.values()) {
    const siblings = index.get(node.parent);
    if (siblings) siblings.push(node);
    else index.set(node.parent, [node]);
  }
  return index;
}

export function add(tree: Tree, parent: number | null, node: Omit<TreeNode, "id" | "parent">): Place {
  const nodes = new Map(tree.nodes);
  nodes.set(tree.nextId, { ...node, id: tree.nextId, parent });
  return { tree: { nodes, nextId: tree.nextId + 1 }, id: tree.nextId };
}

export function change(tree: Tree, id: number, fields: Partial<TreeNode>): Tree {
  const node = tree.nodes.get(id);
  if (!node) return tree;
  return { ...tree, nodes: new Map(tree.nodes).set(id, { ...node, ...fields }) };
}

/**
 * Returns the tree with a node whose document is `text`, and that node. `near` is where the text comes from: the
 * longest beginning that it shares with the document of `near` or of its descendants is not repeated, and nothing that
 * was there is lost. Only a written leaf that was continued or cut is changed in place.
 */
export function commit(tree: Tree, near: number | null, text: string): Place {
  const path = pathTo(tree, near);
  const draft = path.at(-1);
  if (draft && draft.origin === "written" && isLeaf(tree, draft.id) && !draft.name && !draft.isBookmarked) {
    const before = textAt(tree, draft.parent);
    if (text.startsWith(before) && text.length > before.length && text !== before + draft.text) {
      const isElsewhere = childrenOf(tree, draft.parent).some((node) => node !== draft && isBeginning(node, text.slice(before.length)));
      if (!isElsewhere) return { tree: change(tree, draft.id, { text: text.slice(before.length) }), id: draft.id };
    }
  }
  return descend(tree, rootOf(tree, path, text), text);
}

function isLeaf(tree: Tree, id: number): boolean {
  return childrenOf(tree, id).length === 0;
}

function rootOf(tree: Tree, path: readonly TreeNode[], text: string): TreeNode | null {
  const [root] = path;
  if (root && commonLength(root.text, text) > 0) return root;
  return childrenOf(tree, null).find((node) => isBeginning(node, text)) ?? null;
}

function isBeginning(node: TreeNode, text: string): boolean {
  return node.text !== "" && text.startsWith(node.text);
}

function descend(tree: Tree, root: TreeNode | null, text: string): Place {
  let parent: number | null = null;
  let rest = text;
  for (let node: TreeNode | null | undefined = root; node; ) {
    const common = commonLength(node.text, rest);
    if (common < node.text.length) {
      if (common === 0 && node.text !== "") break;
      const split = splitNode(tree, node.id, common);
      return rest.length > common ? add(split.tree, split.id, written(rest.slice(common))) : split;
    }
    parent = node.id;
    rest = rest.slice(common);
    if (rest === "") return { tree, id: node.id };
    node = nextOnTheWay(tree, parent, rest);
  }
  return add(tree, parent, written(rest));
}

/** Returns the child that shares the longest beginning with `rest`, if any shares one. */
function nextOnTheWay(tree: Tree, parent: number, rest: string): TreeNode | undefined {
  let best: TreeNode | undefined;
  let longest = 0;
  for (const child of childrenOf(tree, parent)) {
    const common = commonLength(child.text, rest);
    if (common > longest) [best, longest] = [child, common];
  }
  return best;
}

function written(text: string): Omit<TreeNode, "id" | "parent"> {
  return { origin: "written", text };
}

/** Cuts a node in two: its first part keeps the id, name and run, the second has all its children. */
function splitNode(tree: Tree, id: number, at: number): Place {
  const node = tree.nodes.get(id);
  if (!node || at >= node.text.length) return { tree, id };
  const tokens = node.tokens ?? [];
  const second = add(tree, id, {
    origin: node.origin,
    text: node.text.slice(at),
    tokens: tokensWithin(tokens, at, node.text.length),
    ...(node.run ? { run: node.run } : {}),
  });
  const nodes = new Map(second.tree.nodes);
  for (const child of childrenOf(tree, id)) nodes.set(child.id, { ...child, parent: second.id });
  nodes.set(id, { ...node, text: node.text.slice(0, at), tokens: tokensWithin(tokens, 0, at) });
  return { tree: { ...second.tree, nodes }, id };
}

/** Returns the tree without a node and all that continues it. */
export function prune(tree: Tree, id: number): Tree {
  const index = childIndex(tree);
  const nodes = new Map(tree.nodes);
  const doomed = [id];
  for (let next = doomed.pop(); next !== undefined; next = doomed.pop()) {
    nodes.delete(next);
    doomed.push(...(index.get(next) ?? []).map((node) => node.id));
  }
  return { ...tree, nodes };
}

/** Returns a tree with what `prune` has removed of the one before; null where what it continues was cut since. */
export function putBack(tree: Tree, before: Tree, id: number): Tree | null {
  const parent = before.nodes.get(id)?.parent ?? null;
  if (parent !== null && tree.nodes.get(parent)?.text !== before.nodes.get(parent)?.text) return null;
  const { nodes: others } = prune(before, id);
  const removed = [...before.nodes].filter(([each]) => !others.has(each));
  return { ...tree, nodes: new Map([...tree.nodes, ...removed].sort(([one], [other]) => one - other)) };
}

/** Returns the tokens of a node's document, with positions in its text. */
export function tokensAt(tree: Tree, id: number | null): { token: Token; isGenerated: boolean }[] {
  let start = 0;
  return pathTo(tree, id).flatMap((node) => {
    const offset = start;
    start += node.text.length;
    return (node.tokens ?? []).map((token) => ({
      token: { ...token, from: token.from + offset, to: token.to + offset },
      isGenerated: node.origin === "generated",
    }));
  });
}

/** Returns the length of the beginning that two texts share; no character is cut. */
export function commonLength(one: string, other: string): number {
  const limit = Math.min(one.length, other.length);
  let length = 0;
  while (length < limit && one.charCodeAt(length) === other.charCodeAt(length)) length += 1;
  if (length > 0 && length < one.length && isHighSurrogate(one, length - 1)) length -= 1;
  return length;
}

function isHighSurrogate(text: string, index: number): boolean {
  const code = text.charCodeAt(index);
  return code >= 0xd800 && code < 0xdc00 && text.charCodeAt(index + 1) >= 0xdc00 && text.charCodeAt(index + 1) < 0xe000;
}
