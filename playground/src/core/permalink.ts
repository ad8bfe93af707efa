/** A completion as an address: prompt, settings and what came out, compressed into the part behind the `#`. */
import { asFrame, type Frame } from "./context";
import { storedSeed } from "./request";
import type { Settings } from "./settings";
import type { Until } from "./until";

export interface Shared {
  model: string;
  prompt: string;
  settings: Settings;
  seed: number | null;
  suffix?: string;
  prediction?: string;
  until?: Until;
  frame?: Frame;
  /** The server's fingerprint and the digest of the texts, where the completion was generated. */
  fingerprint?: string;
  digest?: string;
}

const PREFIX = "#p=";
const MAX_BYTES = 4_000_000;

export async function toHash(shared: Shared): Promise<string> {
  const bytes = new TextEncoder().encode(JSON.stringify({ v: 1, ...shared }));
  return PREFIX + base64url(await through(bytes, new CompressionStream("deflate-raw")));
}

/** Returns what a hash holds; null where it holds nothing. Throws an Error that says what is wrong. */
export async function fromHash(hash: string): Promise<Shared | null> {
  if (!hash.startsWith(PREFIX)) return null;
  let found: Partial<Shared> & { v?: number };
  try {
    const bytes = await through(fromBase64url(hash.slice(PREFIX.length)), new DecompressionStream("deflate-raw"));
    found = JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    throw new Error("This link is damaged: it may have been cut when it was copied.");
  }
  if (found.v !== 1 || typeof found.prompt !== "string" || typeof found.model !== "string") {
    throw new Error("This link comes from another version of the playground.");
  }
  const { v: _, frame: around, ...shared } = found;
  const frame = asFrame(around);
  return { ...shared, ...(frame ? { frame } : {}), model: found.model, prompt: found.prompt, settings: object(found.settings), seed: storedSeed(found.seed) };
}

function object(value: unknown): Settings {
  return value !== null && typeof value === "object" && !Array.isArray(value) ? (value as Settings) : {};
}

/** Returns 16 hexadecimal digits that differ where any text does (FNV-1a over UTF-16 units; not for secrets). */
export function digest(texts: readonly string[]): string {
  let hash = 0xcbf29ce484222325n;
  for (const unit of [...texts].map((text) => `${text.length}:${text}`).join("")) {
    for (let index = 0; index < unit.length; index += 1) {
      hash = BigInt.asUintN(64, (hash ^ BigInt(unit.charCodeAt(index))) * 0x100000001b3n);
    }
  }
  return hash.toString(16).padStart(16, "0");
}

async function through(bytes: Uint8Array<ArrayBuffer>, stream: GenericTransformStream): Promise<Uint8Array<ArrayBuffer>> {
  const reader = new Blob([bytes]).stream().pipeThrough(stream).getReader() as ReadableStreamDefaultReader<Uint8Array>;
  const parts: Uint8Array[] = [];
  let length = 0;
  for (let next = await reader.read(); !next.done; next = await reader.read()) {
    parts.push(next.value);
    length += next.value.length;
    if (length > MAX_BYTES) throw new Error("too large");
  }
  const whole = new Uint8Array(length);
  let position = 0;
  for (const part of parts) {
    whole.set(part, position);
    position += part.length;
  }
  return whole;
}

function base64url(bytes: Uint8Array): string {
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

function fromBase64url(text: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (char) => char.charCodeAt(0));
}
