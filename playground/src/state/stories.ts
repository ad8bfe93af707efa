/** The library: stories in the browser's database, each with its tree and notes; every change is kept. */
import { batch, effect, signal } from "@preact/signals";
import { createStore, del, get, keys, promisifyRequest, update } from "idb-keyval";
import { asNotes, NO_NOTES, type Notes } from "../core/context";
import { markdown, readStory, storyFile } from "../core/story_file";
import { EMPTY_TREE, textAt, type Tree } from "../core/tree";
import { fromFile, toFile } from "../core/tree_file";
import { countWords } from "../core/words";
import { isRunning, meter, recall } from "./actions";
import { notes, showCut } from "./context";
import { commitDocument, current, FIRST_PROMPT, reopen, text, theEditor, tree } from "./document";
import { download } from "./download";
import { announce, notify, showError } from "./page";

export interface StoryInfo {
  id: string;
  /** Empty where the person has not named it: its first words stand for it. */
  title: string;
  start: string;
  words: number;
  changed: number;
}

const SAVE_DELAY_MS = 300;
const START_CHARS = 80;
const OLD_TREE = "tree";

export const stories = signal<StoryInfo[]>([]);
export const storyId = signal(newId());
export const title = signal("");
/** The story that was removed last, as the database had it: it can be put back while the list is open. */
export const removed = signal<{ info: StoryInfo; values: [string, unknown][] } | null>(null);

const database = createStore("onward", "values");
/** What waits to be written; null where nothing does. */
let timer: ReturnType<typeof setTimeout> | null = null;
let numWrites = 0;
let isTreeChanged = false;
/** Whether this browser keeps stories at all. */
let isKept = false;
/** When this tab opened its story, for others that have it open: the one that opened it last saves it. */
interface Claim {
  id: string;
  at: number;
  /** Decides between two that were opened in the same millisecond. */
  tie: number;
}

let claim: Claim = { id: "", at: 0, tie: 0 };
/** What the page showed when another tab took the story over; null while this tab saves it. */
let takenOver: readonly unknown[] | null = null;

export function shownTitle({ title: named, start }: Pick<StoryInfo, "title" | "start">): string {
  return named || start || "Untitled";
}

export function startOf(written: string): string {
  return written.trimStart().slice(0, START_CHARS).split("\n", 1)[0] ?? "";
}

interface KeptStory {
  file: unknown;
  notes: unknown;
}

interface KeptDraft {
  current: number | null;
  text: string;
}

/** What the database has may be damaged, or another program's: entries without an id are left out, wrong values emptied. */
function asInfos(found: unknown): StoryInfo[] {
  if (!Array.isArray(found)) return [];
  return found
    .filter((each) => typeof each?.id === "string")
    .map(({ id, title: named, start, words, changed }) => ({
      id,
      title: asText(named),
      start: asText(start),
      words: Number.isFinite(words) ? words : 0,
      changed: Number.isFinite(changed) ? changed : 0,
    }));
}

function asText(found: unknown): string {
  return typeof found === "string" ? found : "";
}

/** Returns the stories that are kept, the last one first. Where their list is lost, they are found by their drafts. */
async function listed(): Promise<StoryInfo[]> {
  const kept = await get<unknown>("stories", database);
  const found = asInfos(kept);
  if (kept !== undefined && !Array.isArray(kept)) {
    for (const name of await keys<string>(database)) {
      if (!name.startsWith("draft-")) continue;
      const written = asText((await get<KeptDraft>(name, database))?.text);
      found.push({ id: name.slice("draft-".length), title: "", start: startOf(written), words: countWords(written), changed: 0 });
    }
  }
  return found.toSorted((one, other) => other.changed - one.changed);
}

/** Opens the last story that can be read, and returns whether there is one; others stay where they are, and are named. */
async function openLast(): Promise<boolean> {
  for (const info of stories.value) {
    try {
      await load(info.id);
      return true;
    } catch {
      notify(`“${shownTitle(info)}” is damaged and cannot be opened. It stays in this browser.`);
    }
  }
  return false;
}

/** Restores what this browser has kept, then keeps every change, until the story is opened in another tab. */
export async function keepStories(): Promise<void> {
  const channel = new BroadcastChannel("onward-story");
  try {
    await takeOldTree();
    stories.value = await listed();
    await openLast();
  } catch {
    notify("This browser does not store anything for this page: export your story before you leave.");
    return;
  }
  isKept = true;
  effect(() => {
    claim = { id: storyId.value, at: Date.now(), tie: crypto.getRandomValues(new Uint32Array(1))[0] ?? 0 };
    channel.postMessage(claim);
  });
  effect(() => {
    void [tree.value, notes.value];
    isTreeChanged = true;
    later();
  });
  effect(() => {
    void [current.value, text.value, title.value, isRunning.value];
    later();
  });
  document.addEventListener("visibilitychange", keepNow);
  addEventListener("beforeunload", keepNow); // later, the next page may be reading already
  channel.onmessage = ({ data: other }: MessageEvent<Claim>) => {
    if (other.id !== storyId.value || takenOver) return;
    if (claim.at > other.at || (claim.at === other.at && claim.tie > other.tie)) {
      channel.postMessage(claim); // tabs that are restored at the same moment hear of each other: one of them saves
      return;
    }
    keepNow();
    takenOver = shownNow();
    notify("This story was opened in another tab, which now saves it. Reload to continue in this one.");
  };
}

function shownNow(): readonly unknown[] {
  return [tree.peek(), notes.peek(), text.peek(), title.peek()];
}

/** What is written in a tab whose story another tab saves is kept too: as a story of its own. */
function keepCopy(before: readonly unknown[]): void {
  if (shownNow().every((each, index) => each === before[index])) return;
  takenOver = null;
  isTreeChanged = true;
  batch(() => {
    title.value = `${shownTitle({ title: title.peek(), start: startOf(text.peek()) })} (copy)`;
    storyId.value = newId();
  });
  notify("Another tab saves this story: what you write here is kept as a copy of it.");
}

/** Writes soon, at the latest SAVE_DELAY_MS after the first change: a long text that is being generated is kept, too. */
function later(): void {
  if (takenOver) keepCopy(takenOver);
  if (takenOver) return;
  timer ??= setTimeout(() => void keep(), SAVE_DELAY_MS);
  document.documentElement.dataset.kept = "false";
}

/** Writes what waits. The open story is then the first of the list. */
export function keepNow(): void {
  if (timer !== null) void keep();
}

/**
 * Writes what has changed, and returns whether that worked. The tree, which is large, is written only where it did, and
 * when no text is being generated.
 */
async function keep(): Promise<boolean> {
  if (timer !== null) clearTimeout(timer);
  timer = null;
  const number = (numWrites += 1);
  const id = storyId.value;
  const info: StoryInfo = { id, title: title.value, start: startOf(text.value), words: countWords(text.value), changed: Date.now() };
  const values: [string, unknown][] = [
    [`draft-${id}`, { current: current.value, text: text.value } satisfies KeptDraft],
  ];
  const hasTree = isTreeChanged && !isRunning.value;
  if (hasTree) {
    values.push([`story-${id}`, { file: toFile(tree.value), notes: notes.value } satisfies KeptStory]);
    isTreeChanged = false;
  }
  const isWritten = write(values); // before the list, which is read first
  const isListed = relist((listed) => [info, ...listed.filter((each) => each.id !== id)]);
  try {
    await Promise.all([isWritten, isListed]);
    if (timer === null && number === numWrites) document.documentElement.dataset.kept = "true"; // what drives the page can wait for this
    return true;
  } catch {
    isTreeChanged ||= hasTree; // the next time
    notify("This browser has no room for the story: export it before you leave.");
    return false;
  }
}

/** Writes values to the database, also where the page is being left: they are committed without another turn of it. */
function write(values: [string, unknown][]): Promise<void> {
  return database("readwrite", (store) => {
    for (const [name, value] of values) store.put(value, name);
    store.transaction.commit();
    return promisifyRequest(store.transaction);
  });
}

/** Changes the list of stories here and in the database, where other tabs change it too. */
async function relist(change: (listed: StoryInfo[]) => StoryInfo[]): Promise<void> {
  stories.value = change(stories.value);
  await update<unknown>(
    "stories",
    (kept) => {
      const changed = change(Array.isArray(kept) ? asInfos(kept) : stories.value);
      stories.value = changed;
      return changed;
    },
    database,
  );
}

/** Makes the tree of this page's first edition a story. */
async function takeOldTree(): Promise<void> {
  const old = await get<{ file: unknown; current: number | null; text: string }>(OLD_TREE, database);
  if (!old) return;
  const written = asText(old.text);
  const info: StoryInfo = { id: newId(), title: "", start: startOf(written), words: countWords(written), changed: Date.now() };
  await write([["stories", [info, ...(await listed())]], [`story-${info.id}`, { file: old.file, notes: NO_NOTES }], [`draft-${info.id}`, old]]);
  await del(OLD_TREE, database);
}

async function read(id: string): Promise<{ tree: Tree; notes: Notes; current: number | null; text: string }> {
  const [story, draft] = await Promise.all([get<KeptStory>(`story-${id}`, database), get<KeptDraft>(`draft-${id}`, database)]);
  const found = story ? fromFile(story.file) : EMPTY_TREE;
  const ids = story ? (story.file as { nodes: { id: number }[] }).nodes.map((node) => node.id) : [];
  const at = draft?.current == null ? null : ids.indexOf(draft.current) + 1 || null; // the file's nodes are numbered anew
  const written = typeof draft?.text === "string" ? draft.text : textAt(found, at);
  return { tree: found, notes: asNotes(story?.notes), current: at, text: written };
}

async function load(id: string): Promise<void> {
  const found = await read(id);
  show(id, stories.value.find((each) => each.id === id)?.title ?? "", found);
}

function show(id: string, name: string, story: { tree: Tree; notes: Notes; current: number | null; text: string }): void {
  takenOver = null;
  batch(() => {
    storyId.value = id;
    title.value = name;
    tree.value = story.tree;
    notes.value = story.notes;
    current.value = story.current;
    text.value = story.text;
    meter.value = null; // the figures are those of another story
  });
  recall();
  reopen();
}

/** Opens a story of the library; the one that was open is kept. */
export async function openStory(id: string): Promise<void> {
  if (id === storyId.value) return;
  try {
    await leave();
    await load(id);
    theEditor().focus();
    announce(`${shownTitle({ title: title.value, start: startOf(text.value) })} is open.`);
  } catch (error) {
    showError(error);
  }
}

/** Returns whether that worked. */
export async function newStory(): Promise<boolean> {
  try {
    await leave();
  } catch (error) {
    showError(error);
    return false;
  }
  show(newId(), "", { tree: EMPTY_TREE, notes: NO_NOTES, current: null, text: "" });
  showCut(0);
  theEditor().focus();
  return true;
}

/** Keeps the open story; one without any text is forgotten. Throws where there is no room for it. */
async function leave(): Promise<void> {
  if (takenOver) return; // another tab keeps it
  if (text.value.trim() !== "") commitDocument();
  else if (tree.value.nodes.size === 0) return forget(storyId.value).catch(() => undefined); // nothing is lost
  if (!(await keep()) && isKept) throw new Error("This browser has no room for the open story: export and remove it, or remove others.");
}

export async function removeStory(id: string): Promise<void> {
  try {
    if (id === storyId.value && !takenOver) await keep();
    const info = stories.value.find((each) => each.id === id);
    const names = [`story-${id}`, `draft-${id}`];
    const values = await Promise.all(names.map(async (name): Promise<[string, unknown]> => [name, await get(name, database)]));
    await forget(id);
    removed.value = info ? { info, values: values.filter(([, value]) => value !== undefined) } : null;
  } catch {
    notify("This browser does not store that the story was removed.");
  }
  if (id !== storyId.value) return;
  if (!(await openLast())) show(newId(), "", { tree: EMPTY_TREE, notes: NO_NOTES, current: null, text: FIRST_PROMPT });
}

/** Puts the story back that was removed last. */
export async function putStoryBack(): Promise<void> {
  if (!removed.value) return;
  const { info, values } = removed.value;
  try {
    await write(values);
    await relist((listed) => [info, ...listed.filter(({ id }) => id !== info.id)].toSorted((one, other) => other.changed - one.changed));
    removed.value = null;
  } catch {
    showError(new Error("This browser has no room to put it back: remove other stories first."));
  }
}

async function forget(id: string): Promise<void> {
  if (id === storyId.value && timer !== null) clearTimeout(timer);
  timer = null;
  const isGone = [del(`story-${id}`, database), del(`draft-${id}`, database)]; // before the list: it makes room
  await Promise.all([...isGone, relist((listed) => listed.filter((each) => each.id !== id))]);
}

export async function renameStory(id: string, name: string): Promise<void> {
  const named = name.trim().slice(0, 200);
  if (id === storyId.value) title.value = named;
  await relist((listed) => listed.map((each) => (each.id === id ? { ...each, title: named } : each)));
}

/** Returns the ids of the stories whose title or text contains what is searched for. */
export async function searchStories(words: string): Promise<Set<string>> {
  const wanted = words.trim().toLowerCase();
  const found = await Promise.all(
    stories.value.map(async ({ id, title: name }) => {
      const written = id === storyId.value ? text.value : asText((await get<KeptDraft>(`draft-${id}`, database))?.text);
      return `${name}\n${written}`.toLowerCase().includes(wanted) ? id : null;
    }),
  );
  return new Set(found.filter((id) => id !== null));
}

export type ExportKind = "txt" | "md" | "json";
const KINDS: Record<ExportKind, string> = { txt: "text/plain", md: "text/markdown", json: "application/json" };

/** Downloads a story: its text, or with tree and notes as JSON. */
export async function exportStory(id: string, kind: ExportKind): Promise<void> {
  try {
    if (id === storyId.value && text.value.trim() !== "") commitDocument();
    const story = id === storyId.value ? { tree: tree.value, notes: notes.value, current: current.value, text: text.value } : await read(id);
    const name = shownTitle(stories.value.find((each) => each.id === id) ?? { title: title.value, start: startOf(text.value) });
    const content = { txt: () => story.text, md: () => markdown(name, story.text), json: () => storyFile({ ...story, title: name }) }[kind]();
    download(`${fileName(name)}.${kind}`, new Blob([content], { type: KINDS[kind] }));
  } catch (error) {
    showError(error);
  }
}

export function fileName(name: string): string {
  return name.replace(/[^\p{L}\p{N} -]/gu, "").trim().slice(0, 60) || "story";
}

/** Opens a file as a story of its own. Returns whether that worked. */
export async function importStory(file: File): Promise<boolean> {
  try {
    const story = await readStory(file.name, new Uint8Array(await file.arrayBuffer()));
    await leave();
    show(newId(), story.title, { ...story, text: textAt(story.tree, story.current) });
    notify(`“${story.title}” was imported.`);
    return true;
  } catch (error) {
    showError(error);
    return false;
  }
}

function newId(): string {
  return `${Date.now().toString(36)}-${Math.floor(Math.random() * 2 ** 32).toString(36)}`;
}
