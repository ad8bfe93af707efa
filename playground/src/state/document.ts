/** The document: the editor's text, and the tree that it is a path of. */
import { batch, computed, effect, signal } from "@preact/signals";
import { createStore, get, set } from "idb-keyval";
import type { Editor } from "../editor/editor";
import { add, change, commit, commonLength, EMPTY_TREE, pathTo, prune, textAt, tokensAt, type Tree } from "../core/tree";
import { fromFile, toFile, withFile } from "../core/tree_file";
import { announce, notify, showError } from "./page";

const NAME = "tree";
const SAVE_DELAY_MS = 300;
export const FIRST_PROMPT = "One night, the moon came down to the garden. Lily opened the door and said,";

export const tree = signal<Tree>(EMPTY_TREE);
/** The node that the document continues. The text may have been edited since. */
export const current = signal<number | null>(null);
export const text = signal(FIRST_PROMPT);
export const path = computed(() => pathTo(tree.value, current.value));
export const isEdited = computed(() => textAt(tree.value, current.value) !== text.value);

let editor: Editor | null = null;

/** The editor is created after this module: whoever needs it asks for it here. */
export function useEditor(created: Editor): void {
  editor = created;
  editor.setDocument(text.value, tokensAt(tree.value, isEdited.value ? null : current.value), { isFirst: true });
}

export function theEditor(): Editor {
  if (!editor) throw new Error("The editor is not ready.");
  return editor;
}

/** Makes the document a node of the tree, and returns it. */
export function commitDocument(upTo?: number): number {
  const written = upTo === undefined ? text.value : text.value.slice(0, upTo);
  const place = commit(tree.value, current.value, written);
  batch(() => {
    tree.value = place.tree;
    current.value = place.id;
  });
  return place.id;
}

/** Shows a node's document. What is in the editor becomes a node first, so that it is not lost. */
export function select(id: number): void {
  if (isEdited.value && text.value.trim() !== "") commitDocument();
  show(id);
}

export function show(id: number | null): void {
  current.value = id;
  theEditor().setDocument(textAt(tree.value, id), tokensAt(tree.value, id));
}

/** Replaces the document by a text, which belongs to the tree near `current`. */
export function write(written: string): void {
  const shared = commonLength(textAt(tree.value, current.value), written);
  const kept = tokensAt(tree.value, current.value).filter(({ token }) => token.to <= shared);
  theEditor().setDocument(written, kept);
}

/** Begins another document; the one that was open stays in the tree. */
export function startNew(): void {
  if (text.value.trim() !== "") commitDocument();
  batch(() => {
    current.value = null;
    theEditor().setDocument("", []);
  });
  theEditor().focus();
}

export function rename(id: number, name: string): void {
  tree.value = change(tree.value, id, { name: name.trim().slice(0, 200) });
}

export function toggleBookmark(id: number): void {
  tree.value = change(tree.value, id, { isBookmarked: !tree.value.nodes.get(id)?.isBookmarked });
}

/** Removes a node and what continues it. Where the document was part of it, its parent is shown. */
export function remove(id: number): void {
  const node = tree.value.nodes.get(id);
  const wasOnPath = path.value.some((each) => each.id === id);
  tree.value = prune(tree.value, id);
  if (wasOnPath) show(node?.parent ?? null);
  announce("Removed from the tree.");
}

export function addGenerated(parent: number, node: Parameters<typeof add>[2]): number {
  const place = add(tree.value, parent, node);
  tree.value = place.tree;
  return place.id;
}

export function exportTree(): string {
  if (text.value.trim() !== "") commitDocument();
  return JSON.stringify(toFile(tree.value), null, 1);
}

/** Adds the nodes of an exported file. */
export function importTree(json: string): void {
  try {
    const before = tree.value.nextId;
    tree.value = withFile(tree.value, parsed(json));
    notify(`${tree.value.nextId - before} nodes were imported.`);
  } catch (error) {
    showError(error);
  }
}

function parsed(json: string): unknown {
  try {
    return JSON.parse(json);
  } catch {
    throw new Error("This file is not JSON.");
  }
}

interface Kept {
  file: unknown;
  current: number | null;
  text: string;
}

/** Restores what this browser has kept, then keeps every change, until the page is opened in another tab. */
export async function keepDocument(): Promise<void> {
  const database = createStore("onward", "values");
  const channel = new BroadcastChannel(NAME);
  channel.postMessage("opened");
  try {
    const kept = (await get(NAME, database)) as Kept | undefined;
    if (kept) restore(kept);
  } catch {
    notify("This browser keeps nothing for this page: export the tree before you leave.");
    return;
  }
  let timer: ReturnType<typeof setTimeout> | undefined;
  const keep = () => {
    clearTimeout(timer);
    timer = undefined;
    set(NAME, { file: toFile(tree.value), current: current.value, text: text.value } satisfies Kept, database).catch(() => {
      notify("This browser has no room for the tree: export it before you leave.");
    });
  };
  const stopKeeping = effect(() => {
    void [tree.value, current.value, text.value];
    clearTimeout(timer);
    timer = setTimeout(keep, SAVE_DELAY_MS);
  });
  document.addEventListener("visibilitychange", () => timer !== undefined && keep());
  channel.onmessage = () => {
    if (timer !== undefined) keep();
    stopKeeping();
    notify("This page was opened in another tab, which now keeps the tree. Reload to go on in this one.");
  };
}

/** Ids are those of the file plus an offset that `fromFile` chooses: the first node of a file is node 1. */
function restore({ file, current: id, text: written }: Kept): void {
  const ids = (file as { nodes: { id: number }[] }).nodes.map((node) => node.id);
  const restored = fromFile(file);
  batch(() => {
    tree.value = restored;
    current.value = id === null ? null : ids.indexOf(id) + 1 || null;
    text.value = written;
  });
}
