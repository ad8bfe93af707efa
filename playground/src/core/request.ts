/** Bodies of requests: only what differs from the API's defaults is sent. */
import type { RequestBody } from "../api/types";
import { framed, type Frame } from "./context";
import type { Settings } from "./settings";
import type { Until } from "./until";

export interface Draft {
  model: string;
  /** The document, up to where the text goes on. */
  prompt: string;
  /** What is sent around it, where that is not just the document. */
  frame?: Frame;
  settings: Settings;
  /** Null where none is sent. */
  seed: number | null;
  /** The page drew the seed for itself: it does without where the engine behind the model uses none. */
  isSeedDrawn?: boolean;
  suffix?: string;
  prediction?: string;
  /** Where the page ends the text itself; the server is not asked. */
  until?: Until;
}

export const MAX_SEED = 2 ** 31;
const NUM_ALTERNATIVES = 5;

/** Returns what reproduces a completion: the request without what only this page needs. */
export function plainBody({ model, prompt, frame, settings, seed, suffix, prediction }: Draft): RequestBody {
  return {
    model,
    prompt: framed(frame, prompt),
    ...settings,
    ...(seed === null ? {} : { seed }),
    ...(suffix === undefined ? {} : { suffix: suffix.slice(0, frame?.follow) }),
    ...(prediction === undefined ? {} : { prediction: { type: "content", content: prediction } }),
  };
}

/** Returns the body of a stream with log-probabilities. `isStrict`: the server knows OpenAI's fields only. */
export function streamBody(draft: Draft, { isStrict }: { isStrict: boolean }): RequestBody {
  return {
    ...plainBody(draft),
    logprobs: NUM_ALTERNATIVES,
    stream: true,
    stream_options: { include_usage: true, ...(isStrict ? {} : { resumable: true }) },
    ...(isStrict ? {} : { return_token_ids: true }),
  };
}

/** Returns the body of a request that generates nothing and scores a text. */
export function scoreBody(model: string, prompt: string): RequestBody {
  return {
    model,
    prompt,
    max_tokens: 0,
    echo: true,
    logprobs: NUM_ALTERNATIVES,
    stream: true,
    stream_options: { include_usage: true },
  };
}

/** Returns the seed that something stored holds. */
export function storedSeed(value: unknown): number | null {
  return value === null ? null : Number(value) || 0;
}

export function randomSeed(): number {
  return Math.floor(Math.random() * MAX_SEED);
}
