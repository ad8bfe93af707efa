import { describe, expect, it } from "vitest";
import { sharedLengths } from "../src/core/difference";
import { add, childIndex, EMPTY_TREE, type Tree } from "../src/core/tree";
import { graphRows } from "../src/core/tree_graph";
import { endOf } from "../src/core/until";
import { countWords } from "../src/core/words";

/** Builds a tree from pairs of a text and the text of its parent. */
function treeOf(...edges: [string, string | null][]): Tree {
  const ids = new Map<string, number>();
  return edges.reduce((tree, [text, parent]) => {
    const place = add(tree, parent === null ? null : (ids.get(parent) as number), { origin: "written", text });
    ids.set(text, place.id);
    return place.tree;
  }, EMPTY_TREE);
}

describe("graphRows", () => {
  const rowsOf = (tree: Tree, limit = 100) => graphRows(childIndex(tree), limit);
  const lanes = (tree: Tree) => rowsOf(tree).rows.map(({ node, lane }) => `${node.text}${lane}`);

  it("keeps a text without branches in one lane", () => expect(lanes(treeOf(["a", null], ["b", "a"], ["c", "b"]))).toEqual(["a0", "b0", "c0"]));

  it("lets older versions branch off, and the newest go straight on", () => {
    const tree = treeOf(["a", null], ["b", "a"], ["c", "a"], ["d", "b"], ["e", "c"]);
    expect(lanes(tree)).toEqual(["a0", "b1", "d1", "c0", "e0"]);
    const rows = rowsOf(tree).rows;
    expect(rows.map((row) => row.open.map((each) => each.lane))).toEqual([[], [0], [0], [], []]);
    expect(rows.map((row) => row.parentLane)).toEqual([null, 0, 1, 0, 0]);
  });

  it("draws every node once, each below its parent, whatever the tree", () => {
    const edges: [string, string | null][] = [["0", null]];
    for (let each = 1; each < 200; each += 1) edges.push([String(each), String(Math.floor(each * ((each * 0.618034) % 1)))]);
    const seen = new Set<number>();
    for (const { node, lane } of rowsOf(treeOf(...edges), 1000).rows) {
      expect(node.parent === null || seen.has(node.parent)).toBe(true);
      expect(lane).toBeLessThan(8);
      seen.add(node.id);
    }
    expect(seen.size).toBe(200);
  });

  it("says where it was cut", () => expect(rowsOf(treeOf(["a", null], ["b", "a"]), 1)).toMatchObject({ isCut: true, rows: [{ lane: 0 }] }));
});

describe("endOf", () => {
  const kept = (text: string, until: "sentence" | "paragraph") => {
    const end = endOf(text, until);
    return end === null ? null : text.slice(0, end);
  };
  it.each([
    [" she went home. Then", " she went home."],
    [' "Come!" he said', ' "Come!"'],
    ["it cost 3.5 coins", null],
    ["wait... what", "wait..."],
    ["not yet", null],
    ["done.", null],
    [".. and so on. But", ".. and so on."],
    ["終わり。次", null],
  ])("of a sentence: %j", (text, found) => expect(kept(text, "sentence")).toBe(found));
  it.each([
    ["\n\nShe left.\n\nHe", "\n\nShe left."],
    ["\n\n", null],
    ["a line", null],
  ])("of a paragraph: %j", (text, found) => expect(kept(text, "paragraph")).toBe(found));
  it("is none where no end was asked for", () => expect(endOf("a. b", "")).toBe(null));
});

describe("countWords", () => {
  it.each([
    ["", 0],
    ["It's a well-known tale — isn’t it? 42!", 7],
    ["東京へ", 3],
    ["été à Zürich", 3],
  ])("of %j", (text, count) => expect(countWords(text)).toBe(count));
});

describe("sharedLengths", () => {
  it("is the longest beginning that a text shares with a different one", () => {
    expect(sharedLengths(["the fox", "the dog", "a hen"])).toEqual([4, 4, 0]);
    expect(sharedLengths(["same", "same"])).toEqual([0, 0]);
  });
});
