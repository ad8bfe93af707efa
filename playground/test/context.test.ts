import { describe, expect, it } from "vitest";
import { asFrame, asNotes, framed, frameOf, isMentioned, NO_NOTES, type Notes } from "../src/core/context";

const entry = (fields: object) => ({ name: "", keys: [], text: "", isAlways: false, ...fields });

/** Four characters are a token. */
const count = async (text: string) => Math.ceil(text.length / 4);
const long = Array.from({ length: 400 }, (_, index) => `Line ${index} of a long story, with a few words in it.`).join("\n");
const frame = (text: string, fields: Partial<Notes> = {}, budget = 500, lastCut = 0) =>
  frameOf({ text, notes: { ...NO_NOTES, ...fields }, budget, count, lastCut });

describe("frameOf", () => {
  it("sends a short text as it is", async () => expect(await frame("Once upon a time")).toEqual({ frame: undefined, parts: [expect.objectContaining({ text: "Once upon a time" })] }));

  it("leaves out the beginning of a long text, up to a paragraph, and keeps room for more", async () => {
    const { frame: found } = await frame(long);
    const sent = framed(found, long);
    expect(sent).toMatch(/^Line \d+ of/);
    expect(long.endsWith(sent)).toBe(true);
    expect(await count(sent)).toBeLessThan(500 * 0.8);
    expect(await count(sent)).toBeGreaterThan(500 * 0.5);
  });

  it("cuts where it has cut before, as long as that fits: the prompts of a session begin alike", async () => {
    const first = (await frame(long)).frame?.cut as number;
    let [cut, text, moves] = [first, long, 0];
    for (let each = 0; each < 40; each += 1) {
      text += "\nAnother line that the model has written, about as long.";
      const next = (await frame(text, {}, 500, cut)).frame?.cut as number;
      expect(await count(text.slice(next))).toBeLessThanOrEqual(500);
      if (next !== cut) moves += 1;
      cut = next;
    }
    expect(moves).toBeGreaterThan(0);
    expect(moves).toBeLessThan(8);
  });

  it("sends all of it again when enough was deleted", async () => {
    const cut = (await frame(long)).frame?.cut as number;
    expect((await frame(long.slice(0, cut + 100), {}, 50_000, cut)).frame).toBe(undefined);
  });

  it("puts memory first, lore behind it, and the note before the last lines", async () => {
    const notes = { memory: "Lily is seven.", note: "[ Rain ]", noteDepth: 1, lore: [entry({ keys: ["Door"], text: "The door is blue." })] };
    const { frame: found, parts } = await frame("She sat.\nShe opened the door", notes);
    expect(framed(found, "She sat.\nShe opened the door")).toBe("Lily is seven.\nThe door is blue.\nShe sat.\n[ Rain ]\nShe opened the door");
    expect(parts.map((part) => part.kind)).toEqual(["memory", "lore", "story", "note", "story"]);
  });

  it("sends every character of what it says is sent, in order", async () => {
    for (const depth of [0, 1, 3, 100]) {
      for (const text of ["", "a", "a\nb\nc\nd\n", long, "🦊".repeat(3000)]) {
        const found = await frame(text, { note: "N", noteDepth: depth, memory: "M" });
        expect(found.parts.filter((part) => !part.leftOut).map((part) => part.text).join("")).toBe(framed(found.frame, text));
        expect(framed(found.frame, text)).not.toMatch(/\p{Surrogate}/u);
      }
    }
  });

  it("leaves lore out that has no room, and says so", async () => {
    const { parts } = await frame("A dragon", { lore: [entry({ keys: ["dragon"], text: "x ".repeat(2000), name: "Dragon" })] });
    expect(parts[0]).toMatchObject({ name: "Dragon", leftOut: "no room" });
  });

  it("refuses a memory that leaves no room for a story", async () => {
    await expect(frame("A", { memory: "x".repeat(1600) })).rejects.toThrow("Memory is too long");
  });

  it("cuts a text without paragraphs, sentences or words too", async () => {
    const { frame: found } = await frame("x".repeat(100_000));
    expect(await count(framed(found, "x".repeat(100_000)))).toBeLessThanOrEqual(500);
  });
});

describe("isMentioned", () => {
  it.each([
    ["Lily", "and LILY said", true],
    ["art", "a party", false],
    ["art", "an art.", true],
    ["月", "月夜", true],
    ["", "anything", false],
    ["Lily", `Lily ${"x ".repeat(3000)}`, false],
  ])("%j in %j: %j", (key, text, found) => expect(isMentioned(entry({ keys: [key] }), text)).toBe(found));
});

describe("what comes from files", () => {
  it.each([null, 5, "x", [], { lore: 5, memory: {} }, { lore: [null, { keys: [1, "a"] }], noteDepth: -1 }])("becomes notes: %j", (value) => {
    const notes = asNotes(value);
    expect([typeof notes.memory, typeof notes.note, Number.isInteger(notes.noteDepth)]).toEqual(["string", "string", true]);
    expect(notes.lore.every((each) => each.keys.every((key) => typeof key === "string"))).toBe(true);
  });
  it.each([null, {}, { head: 1, cut: 0, note: "", noteAt: 0 }, { head: "", cut: -1, note: "", noteAt: 0 }])("is no frame: %j", (value) => expect(asFrame(value)).toBe(undefined));
});
