/** One streamed completion: its chunks become choices with tokens. */
import type { Chunk, RequestBody, Usage } from "../api/types";
import { ApiError, fetchJson, streamCompletion, type StreamOptions } from "../api/client";
import { Stopwatch, type Meter } from "../core/meter";
import { streamBody, type Draft } from "../core/request";
import { TokenAligner, type Token } from "../core/tokens";
import { endOf } from "../core/until";
import { isStrict } from "./start";

export interface LiveChoice {
  text: string;
  tokens: Token[];
  finish: string;
}

export interface Progress {
  choices: readonly LiveChoice[];
  fingerprint: string;
  /** The one that was sent. */
  seed: number | null;
  meter: Meter;
}

const FLUSH_MS = 16;

/**
 * Runs a completion and calls `onProgress` at most once per frame, and at its end. The choices that it passes are
 * always the same objects, which grow. Returns the last progress; on an error or an abort, calls `onProgress` with what
 * there is, and throws.
 */
export async function run(draft: Draft, options: StreamOptions, onProgress: (progress: Progress) => void): Promise<Progress> {
  const choices: LiveChoice[] = [];
  const aligners: TokenAligner[] = [];
  const ended = new Set<number>();
  const { n: numChoices = 1 } = draft.settings as { n?: number };
  const body = bodyOf(draft);
  const stopwatch = new Stopwatch(() => performance.now());
  let usage: Usage | null = null;
  let fingerprint = "";
  let timer: ReturnType<typeof setTimeout> | undefined;
  const progress = (): Progress => ({ choices, fingerprint, seed: "seed" in body ? draft.seed : null, meter: stopwatch.meter(usage) });
  const flush = () => {
    clearTimeout(timer);
    timer = undefined;
    onProgress(progress());
  };
  try {
    for await (const chunk of accepted(body, draft, options)) {
      fingerprint = chunk.system_fingerprint ?? fingerprint;
      usage = chunk.usage ?? usage;
      for (const part of chunk.choices) {
        const choice = (choices[part.index] ??= { text: "", tokens: [], finish: "" });
        if (ended.has(part.index)) continue;
        const aligner = (aligners[part.index] ??= new TokenAligner());
        choice.tokens.push(...aligner.push(part.text, part.logprobs, part.token_ids));
        choice.text += part.text;
        choice.finish = part.finish_reason ?? choice.finish;
        stopwatch.count(part.logprobs?.tokens.length ?? 1);
        if (endAt(choice, draft)) ended.add(part.index);
      }
      if (ended.size > 0 && ended.size >= numChoices) break;
      timer ??= setTimeout(flush, FLUSH_MS);
    }
  } finally {
    flush();
  }
  return progress();
}

/** Cuts a choice where its sentence or paragraph ends; returns whether it has ended. */
function endAt(choice: LiveChoice, { until = "" }: Draft): boolean {
  const end = endOf(choice.text, until);
  if (end === null) return false;
  choice.text = choice.text.slice(0, end);
  choice.tokens = choice.tokens.filter((token) => token.to <= end);
  choice.finish = until;
  return true;
}

/** Candidates cannot be streamed: a request with more of them than choices gets its answer at once. */
function bodyOf(draft: Draft): RequestBody {
  const body = streamBody(draft, { isStrict });
  const { best_of: bestOf, n = 1 } = draft.settings as { best_of?: number; n?: number };
  if ((bestOf ?? 0) <= n) return body;
  const { stream: _, stream_options: __, ...whole } = body;
  return whole;
}

/**
 * Sends a body. What the page adds for itself is removed from it where the server refuses it by name: not every engine
 * behind a server has it.
 */
async function* accepted(body: RequestBody, { isSeedDrawn }: Draft, options: StreamOptions): AsyncGenerator<Chunk> {
  const added = isSeedDrawn ? ["logprobs", "seed"] : ["logprobs"];
  for (;;) {
    try {
      yield* body.stream ? streamCompletion(body, options) : atOnce(body, options);
      return;
    } catch (error) {
      const name = error instanceof ApiError && error.status === 400 ? (error.param ?? "") : "";
      if (!added.includes(name) || !(name in body)) throw error;
      delete body[name];
    }
  }
}

async function* atOnce(body: Record<string, unknown>, { key, signal }: StreamOptions): AsyncGenerator<Chunk> {
  yield await fetchJson<Chunk>("v1/completions", key, body, signal);
}
