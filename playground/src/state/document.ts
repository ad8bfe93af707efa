/** The document: the editor's text, and the tree that it is a path of. */
import { batch, computed, signal } from "@preact/signals";
import type { Editor } from "../editor/editor";
import { add, change, commit, commonLength, EMPTY_TREE, pathTo, prune, putBack, textAt, tokensAt, type Tree } from "../core/tree";

export const FIRST_PROMPT = "One night, the moon came down to the garden. Lily opened the door and said,";

export const tree = signal<Tree>(EMPTY_TREE);
/** The node that the document continues. The text may have been edited since. */
export const current = signal<number | null>(null);
export const text = signal(FIRST_PROMPT);
export const path = computed(() => pathTo(tree.value, current.value));
export const isEdited = computed(() => textAt(tree.value, current.value) !== text.value);

/** How many documents were opened: what was asked for in one does not belong in the next. */
export let numOpened = 0;
let editor: Editor | null = null;

/** The editor is created after this module: whoever needs it asks for it here. */
export function useEditor(created: Editor): void {
  editor = created;
  reopen();
}

/** Shows the document as one that was just opened: nothing of another one can be undone. */
export function reopen(): void {
  numOpened += 1;
  editor?.open(text.value, tokensAt(tree.value, isEdited.value ? null : current.value));
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

export function rename(id: number, name: string): void {
  tree.value = change(tree.value, id, { name: name.trim().slice(0, 200) });
}

export function toggleBookmark(id: number): void {
  tree.value = change(tree.value, id, { isBookmarked: !tree.value.nodes.get(id)?.isBookmarked });
}

/**
 * Removes a node and what continues it. Where the document was part of it, its parent is shown. Returns a function that puts
 * all of it back, and returns whether that was possible.
 */
export function remove(id: number): () => boolean {
  const [before, shown, opened] = [tree.value, current.value, numOpened];
  const parent = before.nodes.get(id)?.parent ?? null;
  const wasOnPath = path.value.some((each) => each.id === id);
  tree.value = prune(before, id);
  if (wasOnPath) show(parent);
  return () => {
    const whole = opened === numOpened ? putBack(tree.value, before, id) : null;
    if (whole === null) return false;
    tree.value = whole;
    if (wasOnPath && current.value === parent && !isEdited.value) show(shown);
    return true;
  };
}

export function addGenerated(parent: number, node: Parameters<typeof add>[2]): number {
  const place = add(tree.value, parent, node);
  tree.value = place.tree;
  return place.id;
}
