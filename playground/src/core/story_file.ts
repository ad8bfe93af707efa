/** Stories as files: what is exported, and what is read of other programs' files. All of it is text, none is trusted. */
import { asNotes, NO_NOTES, type LoreEntry, type Notes } from "./context";
import { fromFile, toFile } from "./tree_file";
import { add, EMPTY_TREE, type Tree } from "./tree";

const FORMAT = "onward-story";
const MAX_BYTES = 100_000_000;

export interface Story {
  title: string;
  tree: Tree;
  /** The node that is shown; null where the file does not say. */
  current: number | null;
  notes: Notes;
}

/** Returns a story as JSON, with its tree. */
export function storyFile({ title, tree, current, notes }: Story): string {
  const nodes = [...tree.nodes.keys()];
  return JSON.stringify({ ...toFile(tree), format: FORMAT, title, notes, current: current === null ? null : nodes.indexOf(current) + 1 || null }, null, 1);
}

/** Returns a text as Markdown: what would be markup is escaped. */
export function markdown(title: string, text: string): string {
  const escaped = text.replace(/[\\`*_[\]<>]/g, "\\$&").replace(/^([ \t]*)([#+-]|\d+(?=[.)]))/gm, (_, space: string, mark: string) => `${space}${/\d/.test(mark) ? mark.replace(/\d$/, "$&\\") : `\\${mark}`}`);
  return `# ${title.replace(/[\\`*_[\]<>#\n]/g, " ").trim()}\n\n${escaped.replace(/\n+/g, (breaks) => (breaks.length === 1 ? "  \n" : breaks))}\n`;
}

/** Reads any file that holds a story, a character or a text. Throws an Error that says what is wrong. */
export async function readStory(name: string, bytes: Uint8Array): Promise<Story> {
  if (bytes.length > MAX_BYTES) throw new Error("This file is larger than 100 MB.");
  const title = name.replace(/\.[^.]*$/, "").slice(0, 200);
  if (bytes[0] === 0x89 && bytes[1] === 0x50) return fromCharacter(object(cardOf(bytes)), title);
  const text = decoded(bytes);
  if (!/\.(json|kobold|story)$/i.test(name) && !text.trimStart().startsWith("{")) return ofText(title, text);
  const file = parsed(text);
  if (file === null || typeof file !== "object" || Array.isArray(file)) throw new Error(UNKNOWN);
  return fromJson(file as Json, title);
}

type Json = Readonly<Record<string, unknown>>;
const UNKNOWN = "This is not a story that this page can read: it knows its own files, those of Mikupad and KoboldAI, character cards, and plain text.";

function fromJson(file: Json, title: string): Story {
  if (file.format === FORMAT || file.format === "onward-tree") {
    const tree = fromFile({ ...file, format: "onward-tree" });
    const current = tree.nodes.has(Number(file.current)) ? Number(file.current) : ([...tree.nodes.keys()].at(-1) ?? null);
    return { title: string(file.title).slice(0, 200) || title, tree, current, notes: asNotes(file.notes) };
  }
  if ("gamestarted" in file || "actions" in file) return fromKobold(file, title);
  if ("memoryTokens" in file || "worldInfo" in file || Array.isArray(file.prompt)) return fromMikupad(file, title);
  if (file.spec !== undefined || "first_mes" in file || "char_persona" in file) return fromCharacter(file, title);
  throw new Error(UNKNOWN);
}

function decoded(bytes: Uint8Array): string {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes).replace(/\r\n?/g, "\n");
  } catch {
    throw new Error("This file is not text in UTF-8.");
  }
}

function parsed(json: string): unknown {
  try {
    return JSON.parse(json);
  } catch {
    throw new Error("This file is not JSON.");
  }
}

function ofText(title: string, text: string, notes: Notes = NO_NOTES): Story {
  const place = text ? add(EMPTY_TREE, null, { origin: "written", text }) : { tree: EMPTY_TREE, id: null };
  return { title, tree: place.tree, current: place.id, notes };
}

/** KoboldAI's and KoboldAI Lite's: the prompt and what followed it, in pieces. */
function fromKobold(file: Json, title: string): Story {
  const pieces = [file.prompt, ...list(file.actions)].map((each) => string(typeof each === "object" ? object(each)["Selected Text"] : each));
  const template = string(file.anotetemplate) || "<|>";
  const note = string(file.authorsnote);
  return ofText(title, pieces.join(""), {
    memory: string(file.memory),
    note: note && template.replace("<|>", () => note),
    noteDepth: NO_NOTES.noteDepth,
    lore: list(file.worldinfo).map((each) => {
      const { key, content, constant, comment } = object(each);
      return { name: string(comment), keys: splitKeys(string(key)), text: string(content), isAlways: constant === true };
    }),
  });
}

/** Mikupad's sessions: the prompt in chunks, memory and note with a prefix and a suffix. */
function fromMikupad(file: Json, title: string): Story {
  const chunks = typeof file.prompt === "string" ? [{ content: file.prompt }] : list(file.prompt);
  const world = object(file.worldInfo);
  const around = (value: unknown) => {
    const { prefix, text, suffix } = object(value);
    return string(text) && string(prefix).replaceAll("\\n", "\n") + string(text) + string(suffix).replaceAll("\\n", "\n");
  };
  return ofText(string(file.name).slice(0, 200) || title, chunks.map((chunk) => string(object(chunk).content)).join(""), {
    memory: around(file.memoryTokens),
    note: around(file.authorNoteTokens),
    noteDepth: asNotes({ noteDepth: file.authorNoteDepth }).noteDepth,
    lore: list(world.entries).map((each) => {
      const { displayName, keys, text } = object(each);
      return { name: string(displayName), keys: list(keys).map(string).filter(Boolean), text: string(text), isAlways: false };
    }),
  });
}

/** Character cards (versions 1 to 3): the description is memory, the first message begins the story. */
function fromCharacter(file: Json, title: string): Story {
  const card = "data" in file ? object(file.data) : file;
  const name = string(card.name ?? card.char_name) || title;
  const filled = (value: unknown) => string(value).replaceAll("\r\n", "\n").replace(/\{\{char\}\}/gi, () => name).replace(/\{\{user\}\}/gi, "You");
  const facts = [card.description ?? card.char_persona, card.personality, card.scenario ?? card.world_scenario, card.mes_example ?? card.example_dialogue];
  const lore = list(object(card.character_book).entries).map((each): LoreEntry => {
    const { name: label, keys, content, constant } = object(each);
    return { name: string(label), keys: list(keys).map(string).filter(Boolean), text: filled(content), isAlways: constant === true };
  });
  const memory = facts.map(filled).filter((text) => text.trim() !== "").join("\n\n");
  return ofText(name.slice(0, 200), filled(card.first_mes ?? card.char_greeting), { ...NO_NOTES, memory, lore });
}

/** Returns the character that a PNG file carries, which is JSON in Base64. */
function cardOf(bytes: Uint8Array): unknown {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const latin = new TextDecoder("latin1");
  for (let at = 8; at + 12 <= bytes.length; ) {
    const length = view.getUint32(at);
    const body = bytes.subarray(at + 8, at + 8 + length);
    const end = body.indexOf(0);
    if (latin.decode(bytes.subarray(at + 4, at + 8)) === "tEXt" && ["chara", "ccv3"].includes(latin.decode(body.subarray(0, end)))) {
      try {
        return JSON.parse(decoded(Uint8Array.from(atob(latin.decode(body.subarray(end + 1))), (char) => char.charCodeAt(0))));
      } catch {
        throw new Error("The character in this picture is damaged.");
      }
    }
    at += 12 + length;
  }
  throw new Error("This picture contains no character card.");
}

function splitKeys(keys: string): string[] {
  return keys.split(",").map((key) => key.trim()).filter(Boolean);
}

function string(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function object(value: unknown): Json {
  return value !== null && typeof value === "object" ? (value as Json) : {};
}

function list(value: unknown): unknown[] {
  return Array.isArray(value) ? value : value !== null && typeof value === "object" ? Object.values(value) : [];
}
