/** Where completions part. */
import { commonLength } from "./tree";
import type { Token } from "./tokens";

/** Returns the index of the first token that differs; null where one is the beginning of the other, or they are equal. */
export function firstDifference(one: readonly Token[], other: readonly Token[]): number | null {
  const shared = Math.min(one.length, other.length);
  for (let index = 0; index < shared; index += 1) {
    if (one[index]?.text !== other[index]?.text) return index;
  }
  return null;
}

/** Returns for each text the length of the longest beginning that it shares with any other of them. */
export function sharedLengths(texts: readonly string[]): number[] {
  return texts.map((text, index) =>
    texts.reduce((longest, other, at) => (at === index || other === text ? longest : Math.max(longest, commonLength(text, other))), 0),
  );
}
