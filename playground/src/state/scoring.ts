/** How surprising every token of the document is. A text that is longer than the context is scored in windows. */
import { effect, signal } from "@preact/signals";
import { ApiError, streamCompletion } from "../api/client";
import { scoreBody } from "../core/request";
import { score, type Score } from "../core/surprise";
import { shifted, TokenAligner, type Token } from "../core/tokens";
import { key, model, tokenizer } from "./access";
import { begin, end, isReady } from "./actions";
import { countTokens } from "./context";
import { text, theEditor } from "./document";
import { announce, shading, showError } from "./page";

/** Half of each window is what the one before has scored: every token has at least that much context. */
const OVERLAP = 0.5;
const SAMPLE_CHARS = 8000;
const CAUTION = 0.85;

export const scored = signal<Score | null>(null);
effect(() => {
  void text.value;
  scored.value = null; // the figures are those of another text
});

/** Scores the document: every token of it gets its log-probability, in context. */
export async function scoreDocument(): Promise<void> {
  const written = text.value;
  if (!written || !(await isReady())) return;
  const signal = begin();
  announce("Scoring.");
  try {
    const tokens = await scoreText(model.value, written, signal);
    const wasGenerated = new Set(theEditor().tokens.filter((each) => each.isGenerated).map(({ token }) => token.from));
    theEditor().setTokens(tokens.map((token) => ({ token, isGenerated: wasGenerated.has(token.from) })));
    scored.value = score(tokens, written);
    shading.value = "surprise";
    announce(scored.value ? `${scored.value.bitsPerByte.toFixed(2)} bits per byte.` : "Nothing to score.");
  } catch (error) {
    showError(error);
  } finally {
    end();
  }
}

/** Returns the tokens of a text with their log-probabilities. */
export async function scoreText(name: string, written: string, signal: AbortSignal): Promise<Token[]> {
  const context = tokenizer.value?.model_max_length ?? Infinity;
  if (written.length < context) return scoreWindow(name, written, signal);
  let size = Math.floor(await charsPer(context * CAUTION, written));
  const tokens: Token[] = [];
  for (let from = 0, scoredTo = 0; scoredTo < written.length; ) {
    try {
      const to = Math.min(written.length, from + size);
      const found = shifted(await scoreWindow(name, written.slice(from, to), signal), from);
      tokens.push(...found.filter((token) => token.from >= scoredTo));
      scoredTo = to;
      from = wordAt(written, to - Math.floor(size * OVERLAP));
    } catch (error) {
      const isTooLong = error instanceof ApiError && error.status === 400 && size > SAMPLE_CHARS / 100;
      if (!isTooLong) throw error;
      size = Math.floor(size * CAUTION);
    }
  }
  return tokens;
}

async function charsPer(tokens: number, written: string): Promise<number> {
  const sample = written.slice(0, SAMPLE_CHARS);
  return (tokens * sample.length) / Math.max(1, await countTokens(sample));
}

function wordAt(written: string, position: number): number {
  const space = written.indexOf(" ", Math.max(0, position));
  return space < 0 || space > position + 200 ? Math.max(0, position) : space;
}

async function scoreWindow(name: string, part: string, signal: AbortSignal): Promise<Token[]> {
  const tokens: Token[] = [];
  const aligner = new TokenAligner();
  for await (const chunk of streamCompletion(scoreBody(name, part), { key: key.value, signal })) {
    for (const each of chunk.choices) tokens.push(...aligner.push(each.text, each.logprobs));
  }
  return tokens;
}
