/** What log-probabilities say: classes for colours, and the two figures by which texts and models are compared. */
import type { Token } from "./tokens";

export const PROBABILITY_STEPS = [0.8, 0.5, 0.25, 0.1, 0.02];
export const SURPRISE_STEPS_BITS = [1, 3, 5, 8, 12];
export const NUM_CLASSES = 6;

/** Returns 0 for the most likely tokens to 5 for the least likely. */
export function probabilityClass(logprob: number): number {
  const probability = Math.exp(logprob);
  const index = PROBABILITY_STEPS.findIndex((step) => probability >= step);
  return index < 0 ? NUM_CLASSES - 1 : index;
}

/** Returns 0 for the least surprising tokens to 5. */
export function surpriseClass(logprob: number): number {
  const bits = bitsOf(logprob);
  const index = SURPRISE_STEPS_BITS.findIndex((step) => bits < step);
  return index < 0 ? NUM_CLASSES - 1 : index;
}

export function bitsOf(logprob: number): number {
  return Math.max(0, -logprob / Math.LN2);
}

export interface Score {
  numTokens: number;
  numBytes: number;
  bits: number;
  bitsPerByte: number;
  perplexity: number;
}

/** Returns the figures of the tokens that have a log-probability, or null where none has. `text` is what they lie in. */
export function score(tokens: readonly Token[], text: string): Score | null {
  const scored = tokens.filter((token) => token.logprob !== null);
  if (scored.length === 0) return null;
  const encoder = new TextEncoder();
  const numBytes = scored.reduce((sum, token) => sum + encoder.encode(text.slice(token.from, token.to)).length, 0);
  const numTokens = scored.reduce((sum, token) => sum + Math.max(1, token.ids.length), 0);
  const nats = -scored.reduce((sum, token) => sum + (token.logprob ?? 0), 0);
  const bits = nats / Math.LN2;
  return { numTokens, numBytes, bits, bitsPerByte: bits / numBytes, perplexity: Math.exp(nats / numTokens) };
}

export function percent(logprob: number): string {
  const value = Math.exp(logprob) * 100;
  if (value >= 99.95) return "100%";
  return value >= 10 ? `${value.toFixed(0)}%` : value >= 0.1 ? `${value.toFixed(1)}%` : "<0.1%";
}
