import { describe, expect, it } from "vitest";
import { NO_NOTES } from "../src/core/context";
import { markdown, readStory, storyFile, type Story } from "../src/core/story_file";
import { add, EMPTY_TREE, textAt } from "../src/core/tree";

const bytes = (content: unknown) => new TextEncoder().encode(typeof content === "string" ? content : JSON.stringify(content));
const read = (content: unknown, name = "My tale.json") => readStory(name, bytes(content));
const textOf = ({ tree, current }: Story) => textAt(tree, current);

describe("stories as files", () => {
  it("hold title, notes and the whole tree", async () => {
    const root = add(EMPTY_TREE, null, { origin: "written", text: "Once" });
    const one = add(root.tree, root.id, { origin: "generated", text: " upon" });
    const two = add(one.tree, root.id, { origin: "generated", text: " more" });
    const story: Story = { title: "T", tree: two.tree, current: one.id, notes: { ...NO_NOTES, memory: "M", lore: [{ name: "n", keys: ["k"], text: "t", isAlways: true }] } };
    expect(await read(storyFile(story))).toEqual(story);
  });

  it("are plain text too, with its line breaks", async () => {
    const story = await read("One\r\ntwo\rthree", "notes.txt");
    expect([story.title, textOf(story)]).toEqual(["notes", "One\ntwo\nthree"]);
  });

  it("are KoboldAI's", async () => {
    const story = await read({
      gamestarted: true, prompt: "Begin.", actions: [" One.", { "Selected Text": " Two." }], memory: "M", authorsnote: "dark", anotetemplate: "[Author's note: <|>]",
      worldinfo: [{ key: "Lily, girl", content: "She is seven.", constant: true, comment: "Lily" }, null],
    });
    expect(textOf(story)).toBe("Begin. One. Two.");
    expect(story.notes).toMatchObject({ memory: "M", note: "[Author's note: dark]", lore: [{ name: "Lily", keys: ["Lily", "girl"], text: "She is seven.", isAlways: true }, { text: "" }] });
  });

  it("are Mikupad's", async () => {
    const story = await read({
      name: "Session 3", prompt: [{ type: "user", content: "Begin" }, { content: " and go", prob: 0.5 }], memoryTokens: { prefix: "<", text: "M", suffix: ">\\n" },
      authorNoteTokens: { prefix: "", text: "N", suffix: "" }, authorNoteDepth: 2, worldInfo: { entries: [{ displayName: "W", keys: ["w"], text: "t" }] },
    });
    expect([story.title, textOf(story)]).toEqual(["Session 3", "Begin and go"]);
    expect(story.notes).toEqual({ memory: "<M>\n", note: "N", noteDepth: 2, lore: [{ name: "W", keys: ["w"], text: "t", isAlways: false }] });
  });

  const card = { spec: "chara_card_v2", data: { name: "Ann", description: "{{char}} is kind.", personality: "", first_mes: "{{char}} looks at {{user}}.", character_book: { entries: [{ keys: ["tea"], content: "{{char}} loves tea." }] } } };

  it("are characters", async () => {
    const story = await read(card);
    expect([story.title, textOf(story), story.notes.memory, story.notes.lore[0]?.text]).toEqual(["Ann", "Ann looks at You.", "Ann is kind.", "Ann loves tea."]);
  });

  it("are characters in pictures", async () => {
    const data = bytes(`chara\0${btoa(JSON.stringify(card))}`);
    const picture = new Uint8Array(8 + 12 + data.length);
    picture.set([0x89, 0x50, 0x4e, 0x47]);
    new DataView(picture.buffer).setUint32(8, data.length);
    picture.set(bytes("tEXt"), 12);
    picture.set(data, 16);
    expect(textOf(await readStory("Ann.png", picture))).toBe("Ann looks at You.");
    await expect(readStory("Ann.png", picture.slice(0, 30))).rejects.toThrow("damaged");
    await expect(readStory("Ann.png", picture.slice(0, 8))).rejects.toThrow("no character");
  });

  it.each([
    ["{", "not JSON"],
    ["[]", "not a story"],
    ["null", "not a story"],
    [{ a: 1 }, "not a story"],
    [{ format: "onward-story", version: 1, nodes: 5 }, "not a tree"],
  ])("that cannot be read are refused: %j", async (content, message) => {
    await expect(read(content)).rejects.toThrow(message);
  });

  it("that are not text are refused", async () => {
    await expect(readStory("a.txt", new Uint8Array([0xff, 0xfe, 0x41]))).rejects.toThrow("UTF-8");
  });

  it.each([
    { gamestarted: 1, prompt: {}, actions: "no", worldinfo: "x" },
    { gamestarted: 1, actions: { "0": { "Selected Text": 5 } } },
    { memoryTokens: 5, prompt: [null, 5, { content: {} }], worldInfo: [] },
    { spec: 1, data: null },
    { first_mes: {}, character_book: { entries: [5] } },
  ])("of strange contents are read without an error: %j", async (content) => {
    expect(typeof textOf(await read(content))).toBe("string");
  });
});

describe("markdown", () => {
  it("keeps text that looks like markup", () => {
    expect(markdown("A *tale*", "# one\n* two <b>\n\n1. three_")).toBe("# A  tale\n\n\\# one  \n\\* two \\<b\\>\n\n1\\. three\\_\n");
  });
});
