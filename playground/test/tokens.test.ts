import { describe, expect, it } from "vitest";
import type { Logprobs } from "../src/api/types";
import { firstDifference } from "../src/core/difference";
import { bitsOf, percent, probabilityClass, score, surpriseClass } from "../src/core/surprise";
import { countCodePoints, isText, TokenAligner, visible, type Token } from "../src/core/tokens";

function logprobs(tokens: string[], offsets: number[], values: (number | null)[] = tokens.map(() => -1)): Logprobs {
  return { tokens, token_logprobs: values, top_logprobs: tokens.map((name) => ({ [name]: -1, other: -2 })), text_offset: offsets };
}

function spans(tokens: readonly Token[]): [number, number][] {
  return tokens.map(({ from, to }) => [from, to]);
}

describe("TokenAligner", () => {
  it("places tokens behind a prompt", () => {
    const tokens = new TokenAligner().push(" a fox", logprobs([" a", " fox"], [9, 11]), [5, 6]);
    expect(spans(tokens)).toEqual([[0, 2], [2, 6]]);
    expect(tokens.map((token) => token.ids)).toEqual([[5], [6]]);
    expect(tokens[0]?.alternatives.map((each) => each.text)).toEqual([" a", "other"]);
  });

  it("goes on from chunk to chunk", () => {
    const aligner = new TokenAligner();
    aligner.push("🦊 a", logprobs(["🦊", " a"], [4, 5]));
    expect(spans(aligner.push(" b🦁", logprobs([" b", "🦁"], [7, 9])))).toEqual([[4, 6], [6, 8]]);
  });

  it("joins the tokens of one character", () => {
    const [first, second, ...rest] = new TokenAligner().push("é🦊", logprobs(["bytes:\\xc3", "bytes:\\xa9", "🦊"], [0, 0, 1], [-1, -2, -4]), [1, 2, 3]);
    expect([first?.from, first?.to, first?.ids, first?.logprob]).toEqual([0, 1, [1, 2], -3]);
    expect([second?.from, second?.to, rest.length]).toEqual([1, 3, 0]);
  });

  it("joins them across chunks too", () => {
    const aligner = new TokenAligner();
    expect(aligner.push("", logprobs(["bytes:\\xc3"], [3]), [1])).toEqual([]);
    const [token] = aligner.push("é", logprobs(["bytes:\\xa9"], [3]), [2]);
    expect([token?.from, token?.to, token?.ids]).toEqual([0, 1, [1, 2]]);
  });

  it("knows no ids of an echoed prompt, and no probability of its first token", () => {
    const tokens = new TokenAligner().push("ab", logprobs(["a", "b"], [0, 1], [null, -1]), [7]);
    expect(tokens.map((token) => [token.ids, token.logprob])).toEqual([[[], null], [[7], -1]]);
  });

  it("survives lone surrogates and a chunk without log-probabilities", () => {
    const aligner = new TokenAligner();
    expect(aligner.push("\ud800", null)).toEqual([]);
    expect(spans(aligner.push("x", logprobs(["x"], [1])))).toEqual([[1, 2]]);
  });
});

describe("names of tokens", () => {
  it("are text only where they can be typed", () => {
    expect([" a", "bytes:\\xf0", "\ufffd", ""].map(isText)).toEqual([true, false, false, false]);
  });
  it("show spaces and line breaks", () => expect(visible(" a\n\t")).toBe("·a↵→"));
  it("are counted in code points", () => expect(countCodePoints("a🦊\ud800")).toBe(3));
});

describe("surprise", () => {
  it("has a class for every probability", () => {
    expect([1, 0.8, 0.5, 0.25, 0.1, 0.02, 0.01, 0].map((p) => probabilityClass(Math.log(p)))).toEqual([0, 0, 1, 2, 3, 4, 5, 5]);
    expect([0, 1, 3, 5, 8, 12, Infinity].map((bits) => surpriseClass(-bits * Math.LN2))).toEqual([0, 1, 2, 3, 4, 5, 5]);
  });

  it("is measured per byte and as perplexity, of scored tokens only", () => {
    const text = "aé";
    const tokens = [
      { text: "a", from: 0, to: 1, ids: [], logprob: null, alternatives: [] },
      { text: "é", from: 1, to: 2, ids: [], logprob: -4 * Math.LN2, alternatives: [] },
    ];
    expect(score(tokens, text)).toEqual({ numTokens: 1, numBytes: 2, bits: 4, bitsPerByte: 2, perplexity: expect.closeTo(16) });
    expect(score(tokens.slice(0, 1), text)).toBe(null);
    expect(bitsOf(0)).toBe(0);
  });

  it("is a percentage for people", () => {
    expect([1, 0.5, 0.051, 0.00001].map((p) => percent(Math.log(p)))).toEqual(["100%", "50%", "5.1%", "<0.1%"]);
  });
});

describe("firstDifference", () => {
  const tokens = (...names: string[]) => names.map((text) => ({ text }) as Token);
  it("is the first token that is not the same", () => expect(firstDifference(tokens("a", "b"), tokens("a", "c"))).toBe(1));
  it("is null for a beginning", () => expect(firstDifference(tokens("a"), tokens("a", "c"))).toBe(null));
});
