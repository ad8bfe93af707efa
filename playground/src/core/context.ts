/** What of a text is sent when it is longer than the model's context, and what is sent with it. */

/** Text that is sent where one of its keys occurs near the end of the story. */
export interface LoreEntry {
  name: string;
  keys: string[];
  text: string;
  /** Sent whether a key occurs or not. */
  isAlways: boolean;
}

/** What a writer wants the model to know. It is sent as it is written, each part with a line break after it. */
export interface Notes {
  /** Always at the beginning. */
  memory: string;
  /** Near the end, before the last `noteDepth` lines. */
  note: string;
  noteDepth: number;
  lore: LoreEntry[];
}

export const NO_NOTES: Notes = { memory: "", note: "", noteDepth: 3, lore: [] };

/** What is sent around a document's text: `head`, the text from `cut` on, and `note` at `noteAt`. */
export interface Frame {
  head: string;
  cut: number;
  note: string;
  noteAt: number;
  /** How many characters of the text behind the cursor are sent; all of it where this is missing. */
  follow?: number;
}

export interface Part {
  kind: "memory" | "lore" | "note" | "story";
  name: string;
  text: string;
  /** Why it is not sent; empty where it is. */
  leftOut: string;
}

const SCANNED_CHARS = 4000;
const LORE_FRACTION = 0.3;
/** After a cut the text has room to grow, so that the next ones begin alike and the server's prefix cache knows them. */
const KEPT_FRACTION = 0.75;
const CHARS_PER_TOKEN = 4;
const MAX_TRIES = 6;
const SPARE_TOKENS = 4;

export const NO_FRAME: Frame = { head: "", cut: 0, note: "", noteAt: 0 };

export type Count = (text: string) => Promise<number>;

export function framed(frame: Frame | undefined, text: string): string {
  if (!frame) return text;
  const noteAt = Math.min(Math.max(frame.noteAt, frame.cut), text.length);
  return frame.head + text.slice(frame.cut, noteAt) + frame.note + text.slice(noteAt);
}

/** Returns a frame from a file or link, undefined where it is none. */
export function asFrame(value: unknown): Frame | undefined {
  const { head, cut, note, noteAt, follow } = (value ?? {}) as Partial<Frame>;
  const isFrame = typeof head === "string" && typeof note === "string" && isPosition(cut) && isPosition(noteAt);
  return isFrame ? { head, cut, note, noteAt, ...(isPosition(follow) ? { follow } : {}) } : undefined;
}

function isPosition(value: unknown): value is number {
  return Number.isInteger(value) && (value as number) >= 0;
}

/** Returns notes from a file, with everything that is not one left out. */
export function asNotes(value: unknown): Notes {
  const { memory, note, noteDepth, lore } = (value ?? {}) as Partial<Notes>;
  return {
    memory: string(memory),
    note: string(note),
    noteDepth: isPosition(noteDepth) ? Math.min(noteDepth, 1000) : NO_NOTES.noteDepth,
    lore: Array.isArray(lore) ? lore.slice(0, 10_000).map(asEntry) : [],
  };
}

function asEntry(value: unknown): LoreEntry {
  const { name, keys, text, isAlways } = (value ?? {}) as Partial<LoreEntry>;
  return { name: string(name), keys: Array.isArray(keys) ? keys.map(string).filter(Boolean) : [], text: string(text), isAlways: isAlways === true };
}

function string(value: unknown): string {
  return typeof value === "string" ? value : "";
}

/** Whether one of an entry's keys occurs as a word near the end of the story; upper and lower case are alike. */
export function isMentioned({ keys }: LoreEntry, story: string): boolean {
  const end = story.slice(-SCANNED_CHARS).toLowerCase();
  return keys.some((key) => occurs(key.trim().toLowerCase(), end));
}

function occurs(key: string, text: string): boolean {
  const isInside = (char: string | undefined) => char !== undefined && /[\p{L}\p{N}]/u.test(char) && !/\p{Script=Han}|\p{Script=Hiragana}|\p{Script=Katakana}/u.test(char);
  for (let at = key ? text.indexOf(key) : -1; at >= 0; at = text.indexOf(key, at + 1)) {
    if (!isInside(text[at - 1]) && !isInside(text[at + key.length])) return true;
  }
  return false;
}

export interface Framing {
  /** Undefined where the text is sent as it is. */
  frame: Frame | undefined;
  parts: Part[];
}

interface Wanted {
  text: string;
  notes: Notes;
  /** Tokens that the prompt may have. */
  budget: number;
  count: Count;
  /** Where the text was cut before: it stays there as long as possible. */
  lastCut: number;
}

/** Returns how a text is sent within a budget. Throws an Error where memory and note alone do not fit. */
export async function frameOf({ text, notes, budget, count, lastCut }: Wanted): Promise<Framing> {
  const memory: Part = { kind: "memory", name: "Memory", text: line(notes.memory), leftOut: "" };
  const note: Part = { kind: "note", name: "Author's note", text: line(notes.note), leftOut: "" };
  let room = budget - SPARE_TOKENS;
  for (const { text: fixed, name } of [memory, note]) {
    if (fixed) room -= await count(fixed);
    if (room < budget / 4) throw new Error(`${name} is too long: it leaves less than a quarter of the context for the story.`);
  }
  const lore: Part[] = [];
  let loreRoom = budget * LORE_FRACTION;
  for (const entry of notes.lore) {
    const part: Part = { kind: "lore", name: entry.name || entry.keys[0] || "Lore", text: line(entry.text), leftOut: "" };
    if (!part.text || !(entry.isAlways || isMentioned(entry, text))) continue;
    const size = await count(part.text);
    if (size > loreRoom || room - size < budget / 4) part.leftOut = "no room";
    else [loreRoom, room] = [loreRoom - size, room - size];
    lore.push(part);
  }
  const cut = await cutOf(text, room, count, lastCut);
  const head = [memory, ...lore].map((part) => (part.leftOut ? "" : part.text)).join("");
  const noteAt = note.text ? Math.max(cut, lineFromEnd(text, notes.noteDepth)) : cut;
  const parts: Part[] = [
    memory,
    ...lore,
    { kind: "story", name: "Left out", text: text.slice(0, cut), leftOut: "longer than the context" },
    { kind: "story", name: "Story", text: text.slice(cut, noteAt), leftOut: "" },
    note,
    { kind: "story", name: "Story", text: text.slice(noteAt), leftOut: "" },
  ];
  const isPlain = head === "" && cut === 0 && note.text === "";
  return { frame: isPlain ? undefined : { head, cut, note: note.text, noteAt }, parts: parts.filter((part) => part.text !== "") };
}

function line(text: string): string {
  return text.trim() === "" ? "" : text.endsWith("\n") ? text : `${text}\n`;
}

function lineFromEnd(text: string, lines: number): number {
  let at = text.length;
  for (let left = lines; left > 0 && at > 0; left -= 1) at = text.lastIndexOf("\n", at - 2) + 1;
  return at;
}

/** Returns where the sent text begins: 0, where it was cut before, or at a paragraph further on. */
async function cutOf(text: string, room: number, count: Count, lastCut: number): Promise<number> {
  if (room < 1 || fitsSurely(text, room)) return 0;
  let start = lastCut < text.length ? lastCut : 0;
  let size = await count(text.slice(start));
  if (size <= room && (start === 0 || size > room / 2)) return start;
  if (size <= room && (await count(text)) <= room) return 0;
  let charsPerToken = (text.length - start) / Math.max(1, size);
  for (let tries = 0; tries < MAX_TRIES; tries += 1) {
    start = paragraphAt(text, text.length - Math.floor(room * KEPT_FRACTION * charsPerToken));
    size = await count(text.slice(start));
    if (size <= room) return start;
    charsPerToken *= (room / size) * 0.95;
  }
  return paragraphAt(text, text.length - Math.floor(room / CHARS_PER_TOKEN));
}

/** No token is shorter than a byte. */
function fitsSurely(text: string, room: number): boolean {
  return text.length <= room && new TextEncoder().encode(text).length <= room;
}

/** Returns the first beginning of a paragraph, sentence or word at or after a position, of what is near. */
function paragraphAt(text: string, position: number): number {
  const from = Math.max(0, Math.min(position, text.length));
  if (from === 0) return 0;
  const near = text.slice(from, from + Math.min(2000, Math.floor((text.length - from) / 2)));
  for (const end of [/\n+/, /[.!?…]["'”’)]*\s+/, /\s+/]) {
    const found = end.exec(near);
    if (found) return from + found.index + found[0].length;
  }
  const unit = text.charCodeAt(from);
  return unit >= 0xdc00 && unit < 0xe000 ? from + 1 : from;
}
