import { describe, expect, it } from "vitest";
import { add, change, childrenOf, commit, EMPTY_TREE, pathTo, prune, putBack, textAt, tokensAt, type Place, type Tree } from "../src/core/tree";
import type { Token } from "../src/core/tokens";
import { fromFile, toFile } from "../src/core/tree_file";

function token(from: number, to: number): Token {
  return { text: "x", from, to, ids: [1], logprob: -1, alternatives: [] };
}

function generated(place: Place, text: string): Place {
  return add(place.tree, place.id, { origin: "generated", text, tokens: [token(0, text.length)] });
}

/** A prompt with two generated continuations. */
function story() {
  const prompt = commit(EMPTY_TREE, null, "Once upon");
  const first = generated(prompt, " a time");
  const second = generated({ tree: first.tree, id: prompt.id }, " a hill");
  return { prompt: prompt.id, first: first.id, second: second.id, tree: second.tree };
}

function texts(tree: Tree): string[] {
  const leaves = [...tree.nodes.values()].filter((node) => childrenOf(tree, node.id).length === 0);
  return leaves.map((node) => textAt(tree, node.id)).sort();
}

describe("commit", () => {
  it("finds the node of a document that is there", () => {
    const { tree, first } = story();
    expect(commit(tree, first, "Once upon a time")).toEqual({ tree, id: first });
  });

  it("continues a generated text with what was written behind it", () => {
    const { tree, first } = story();
    const place = commit(tree, first, "Once upon a time there");
    expect(pathTo(place.tree, place.id).map((node) => node.text)).toEqual(["Once upon", " a time", " there"]);
    expect(place.tree.nodes.get(place.id)?.origin).toBe("written");
  });

  it("splits a node where a text parts from it, and keeps what came of it", () => {
    const { tree, first } = story();
    const place = commit(tree, first, "Once upon a tiger");
    expect(texts(place.tree)).toEqual(["Once upon a hill", "Once upon a tiger", "Once upon a time"]);
    expect(textAt(place.tree, place.id)).toBe("Once upon a tiger");
  });

  it("splits tokens with their node", () => {
    const prompt = commit(EMPTY_TREE, null, "ab");
    const { tree, id } = add(prompt.tree, prompt.id, { origin: "generated", text: "cdef", tokens: [token(0, 2), token(2, 4)] });
    const place = commit(tree, id, "abcdX");
    expect(tokensAt(place.tree, place.id).map(({ token: { from, to } }) => [from, to])).toEqual([[2, 4]]);
    expect(tokensAt(place.tree, childrenOf(place.tree, id)[0]!.id).map(({ token: { from, to } }) => [from, to])).toEqual([[2, 4], [4, 6]]);
  });

  it("takes a beginning of a document as a node of its own", () => {
    const { tree, first } = story();
    const place = commit(tree, first, "Once");
    expect(textAt(place.tree, place.id)).toBe("Once");
    expect(texts(place.tree)).toEqual(["Once upon a hill", "Once upon a time"]);
  });

  it("changes a draft in place, as long as nothing continues it", () => {
    const draft = commit(EMPTY_TREE, null, "One");
    const place = commit(draft.tree, draft.id, "One night");
    expect(place.tree.nodes.size).toBe(1);
    expect(commit(place.tree, place.id, "Two").tree.nodes.size).toBe(1);
  });

  it("does not change a draft that has a name or a bookmark", () => {
    const draft = commit(EMPTY_TREE, null, "One night");
    const place = commit(change(draft.tree, draft.id, { isBookmarked: true }), draft.id, "Two");
    expect(texts(place.tree)).toEqual(["One night", "Two"]);
  });

  it("begins another root for a text that shares nothing", () => {
    const { tree, first } = story();
    const place = commit(tree, first, "Else");
    expect(place.tree.nodes.get(place.id)?.parent).toBe(null);
    expect(texts(place.tree)).toContain("Once upon a time");
  });

  it("never cuts a character in two", () => {
    const { tree, id } = commit(EMPTY_TREE, null, "a🦊");
    const child = generated({ tree, id }, "!");
    const place = commit(child.tree, child.id, "a🦁");
    expect(pathTo(place.tree, place.id).map((node) => node.text)).toEqual(["a", "🦁"]);
  });

  it("loses nothing in any order of edits and generations", () => {
    let seed = 7;
    const random = (limit: number) => (seed = (seed * 48271) % 2147483647) % limit;
    let place: Place = { tree: EMPTY_TREE, id: 0 };
    const wanted = new Set<string>();
    for (let round = 0; round < 400; round += 1) {
      const ids = [...place.tree.nodes.keys()];
      const near = ids.length > 0 ? ids[random(ids.length)]! : null;
      const document = textAt(place.tree, near);
      const edited = document.slice(0, random(document.length + 1)) + "ab".repeat(random(3)) + "a";
      place = generated(commit(place.tree, near, edited), "b".repeat(1 + random(3)));
      wanted.add(textAt(place.tree, place.id));
      const all = texts(place.tree);
      for (const text of wanted) expect(all.some((each) => each.startsWith(text))).toBe(true);
    }
    expect(place.tree.nodes.size).toBeLessThan(1600);
  });
});

describe("prune", () => {
  it("removes a node and all that continues it, and nothing else", () => {
    const { tree, first, second } = story();
    const place = commit(tree, first, "Once upon a time there");
    const pruned = prune(place.tree, first);
    expect([...pruned.nodes.keys()].sort()).toEqual([tree.nodes.get(first)!.parent, second]);
  });

  it("is taken back as a whole, also after others were added", () => {
    const { tree, prompt, first } = story();
    const { tree: before } = commit(tree, first, "Once upon a time there");
    const pruned = prune(before, first);
    expect(putBack(pruned, before, first)).toEqual(before);
    const { tree: grown, id } = commit(pruned, prompt, "Once upon, then");
    const whole = putBack(grown, before, first)!;
    expect([...whole.nodes.keys()]).toEqual([...before.nodes.keys(), id]);
    expect(textAt(whole, first)).toBe("Once upon a time");
    expect(putBack(prune(before, prompt), before, prompt)).toEqual(before);
  });

  it("is not taken back where the text before it was cut, or is gone", () => {
    const { tree, prompt, first } = story();
    const pruned = prune(tree, first);
    expect(putBack(commit(pruned, prompt, "Once more").tree, tree, first)).toBeNull();
    expect(putBack(prune(pruned, prompt), tree, first)).toBeNull();
  });
});

describe("files", () => {
  it("hold the whole tree", () => {
    const { tree, first } = story();
    const named = change(tree, first, { name: "good", isBookmarked: true });
    expect(fromFile(JSON.parse(JSON.stringify(toFile(named))))).toEqual(named);
  });

  it.each([
    [{}, "not a tree"],
    [null, "not a tree"],
    [{ format: "onward-tree", version: 2, nodes: [] }, "version 2"],
    [{ format: "onward-tree", version: 1, nodes: [{ id: 1, parent: 5, text: "" }] }, "parent is missing"],
    [{ format: "onward-tree", version: 1, nodes: [{ id: 1, parent: null }] }, "no id, parent or text"],
    [{ format: "onward-tree", version: 1, nodes: [{ id: 1, parent: 2, text: "a" }, { id: 2, parent: 1, text: "b" }] }, "cycle"],
    [{ format: "onward-tree", version: 1, nodes: [{ id: 1, parent: null, text: "a" }, { id: 1, parent: null, text: "b" }] }, "same id"],
  ])("that are broken are refused: %j", (file, message) => {
    expect(() => fromFile(file)).toThrow(message);
  });
});
