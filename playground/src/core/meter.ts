/** What a completion cost: counts from the server, times as this page saw them. */
import type { Usage } from "../api/types";

export interface Meter {
  promptTokens: number | null;
  cachedTokens: number | null;
  completionTokens: number;
  acceptedTokens: number;
  rejectedTokens: number;
  firstTokenMs: number | null;
  tokensPerSecond: number | null;
  totalTokens: number | null;
  /** When tokens arrived, in milliseconds from the start, and how many. */
  arrivals: readonly (readonly [number, number])[];
}

/** Measures one request. `now` returns milliseconds. */
export class Stopwatch {
  private readonly started: number;
  private first: number | null = null;
  private last: number | null = null;
  private numTokens = 0;
  private atFirst = 0;
  private readonly arrivals: [number, number][] = [];

  constructor(private readonly now: () => number) {
    this.started = now();
  }

  count(numTokens: number): void {
    this.last = this.now();
    this.numTokens += numTokens;
    this.arrivals.push([this.last - this.started, numTokens]);
    if (this.first !== null) return;
    this.first = this.last;
    this.atFirst = numTokens;
  }

  meter(usage: Usage | null): Meter {
    const details = usage?.completion_tokens_details;
    return {
      promptTokens: usage?.prompt_tokens ?? null,
      cachedTokens: usage?.prompt_tokens_details.cached_tokens ?? null,
      completionTokens: usage?.completion_tokens ?? this.numTokens,
      acceptedTokens: details?.accepted_prediction_tokens ?? 0,
      rejectedTokens: details?.rejected_prediction_tokens ?? 0,
      firstTokenMs: this.first === null ? null : this.first - this.started,
      tokensPerSecond: this.rate(usage?.completion_tokens),
      totalTokens: usage?.total_tokens ?? null,
      arrivals: this.arrivals,
    };
  }

  /** Tokens after the first ones, over the time that they took. */
  private rate(counted: number | undefined): number | null {
    const numLater = (counted ?? this.numTokens) - this.atFirst;
    if (this.first === null || this.last === null || this.last <= this.first || numLater < 1) return null;
    return (numLater * 1000) / (this.last - this.first);
  }
}

/**
 * Returns about how many milliseconds a prediction saved: each accepted token is one that needed no step of its own.
 * Null where nothing was accepted, or too little was measured.
 */
export function savedMs({ acceptedTokens, completionTokens, tokensPerSecond }: Meter): number | null {
  const numSteps = completionTokens - acceptedTokens;
  if (acceptedTokens === 0 || tokensPerSecond === null || numSteps < 1) return null;
  const elapsedMs = (completionTokens * 1000) / tokensPerSecond;
  return (acceptedTokens * elapsedMs) / numSteps;
}
