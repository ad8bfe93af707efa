/** Tokens and where they lie in a text: positions are UTF-16 units, the server's offsets are code points. */
import type { Logprobs } from "../api/types";

export interface Alternative {
  text: string;
  logprob: number;
}

/** One token, or the tokens that spell one character together, from `from` to `to` in some text. */
export interface Token {
  text: string;
  from: number;
  to: number;
  ids: readonly number[];
  /** The sum over all tokens of a character; null where the model had nothing to predict from. */
  logprob: number | null;
  alternatives: readonly Alternative[];
}

/**
 * Places the tokens of one choice of a stream in its text, chunk by chunk.
 *
 * Tokens that end inside a character have no width: they join the token that completes it.
 */
export class TokenAligner {
  private length = 0;
  private base: number | null = null;
  private codePoints = 0;
  private open: Token | null = null;

  /** Returns the tokens that this chunk completes, with positions in the whole text of the choice. */
  push(text: string, logprobs: Logprobs | null | undefined, ids: readonly number[] = []): Token[] {
    const completed: Token[] = [];
    if (logprobs && logprobs.tokens.length > 0) {
      this.base ??= logprobs.text_offset[0] ?? 0;
      const start = this.base + this.codePoints;
      const ends = [...logprobs.text_offset.slice(1).map((offset) => offset - start), Infinity];
      const positions = new CodePointWalk(text);
      const firstId = logprobs.tokens.length - ids.length;
      logprobs.tokens.forEach((name, index) => {
        const token: Token = {
          text: name,
          from: this.length + positions.at(index === 0 ? 0 : (ends[index - 1] ?? 0)),
          to: this.length + positions.at(ends[index] ?? Infinity),
          ids: index >= firstId && firstId >= 0 ? [ids[index - firstId] as number] : [],
          logprob: logprobs.token_logprobs[index] ?? null,
          alternatives: alternatives(logprobs.top_logprobs?.[index]),
        };
        this.open = this.open ? joined(this.open, token) : token;
        if (this.open.to > this.open.from) {
          completed.push(this.open);
          this.open = null;
        }
      });
    }
    this.length += text.length;
    this.codePoints += countCodePoints(text);
    return completed;
  }
}

function joined(first: Token, second: Token): Token {
  const logprob = first.logprob === null || second.logprob === null ? null : first.logprob + second.logprob;
  return { ...first, to: second.to, text: first.text + second.text, ids: [...first.ids, ...second.ids], logprob };
}

function alternatives(top: Record<string, number> | null | undefined): Alternative[] {
  return Object.entries(top ?? {})
    .map(([text, logprob]) => ({ text, logprob }))
    .sort((a, b) => b.logprob - a.logprob);
}

/** UTF-16 positions of ascending code point offsets, in one pass. */
class CodePointWalk {
  private offset = 0;
  private position = 0;
  constructor(private readonly text: string) {}

  at(offset: number): number {
    while (this.offset < offset && this.position < this.text.length) {
      this.position += (this.text.codePointAt(this.position) ?? 0) > 0xffff ? 2 : 1;
      this.offset += 1;
    }
    return this.position;
  }
}

export function countCodePoints(text: string): number {
  let count = 0;
  for (let position = 0; position < text.length; count += 1) {
    position += (text.codePointAt(position) ?? 0) > 0xffff ? 2 : 1;
  }
  return count;
}

/** Returns the tokens within `from` and `to`, with positions relative to `from`. */
export function tokensWithin(tokens: readonly Token[], from: number, to: number): Token[] {
  return tokens
    .filter((token) => token.from >= from && token.to <= to)
    .map((token) => ({ ...token, from: token.from - from, to: token.to - from }));
}

export function shifted(tokens: readonly Token[], by: number): Token[] {
  return tokens.map((token) => ({ ...token, from: token.from + by, to: token.to + by }));
}

/** Whether the text of an alternative can be typed: parts of characters have names such as `bytes:\xf0`. */
export function isText(name: string): boolean {
  return name !== "" && !name.startsWith("bytes:") && !name.includes("\ufffd");
}

/** Returns a token's text with spaces and line breaks visible. */
export function visible(text: string): string {
  return text.replaceAll(" ", "·").replaceAll("\n", "↵").replaceAll("\t", "→").replaceAll("\r", "␍") || "∅";
}
