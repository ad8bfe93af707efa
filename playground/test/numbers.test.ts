import { describe, expect, it } from "vitest";
import { numbersCsv, numbersJson, picture, svg } from "../src/core/numbers";
import { request, TEMPLATES } from "../src/core/templates";

const token = (from: number, to: number, logprob: number | null) => ({ text: "", from, to, ids: [1], logprob, alternatives: [] });

describe("numbersCsv", () => {
  it("guards text that would be a formula, and no number", () => {
    const text = '=1+1,"a"\n-x @y';
    const rows = numbersCsv([token(0, 4, -1.5), token(4, 9, null), token(9, 11, -0), token(11, 14, -2)], text).split("\r\n");
    expect(rows.slice(0, 2)).toEqual(["index,from,to,text,ids,logprob,bits", "0,0,4,'=1+1,1,-1.5,2.1640425613334453"]);
    expect(rows[2]).toBe('1,4,9,",""a""\n",1,,');
    expect(rows[3]?.startsWith("2,9,11,'-x,1,0,")).toBe(true);
    expect(rows[4]?.startsWith('3,11,14," @y",1,-2,')).toBe(true);
  });
});

describe("pictures", () => {
  const text = "Hi <b>&\n" + "word ".repeat(100);
  const drawn = picture([token(0, 2, -9), token(3, 6, -0.01)], text, "surprise", (each) => each.length * 8);

  it("show every character in order, in lines that fit", () => {
    expect(drawn.boxes.map((box) => box.text).join("")).toBe(text.replace("\n", ""));
    expect(drawn.boxes.every((box) => box.x + box.width <= drawn.width)).toBe(true);
    expect(drawn.boxes.at(-1)?.y).toBeLessThan(drawn.height);
  });

  it("are text in SVG, whatever they contain", () => {
    const source = svg(drawn);
    expect(source).toContain("&lt;b&gt;");
    expect(source).not.toContain("<b>");
    expect(svg(picture([], "a\u0000b\ud800", "surprise", () => 8))).not.toMatch(/\u0000|\p{Surrogate}/u);
  });
});

it("JSON holds text, tokens and facts", () => expect(JSON.parse(numbersJson([token(0, 1, -1)], "ab", { model: "m" }))).toMatchObject({ model: "m", text: "ab", tokens: [{ text: "a", logprob: -1 }] }));

describe("templates", () => {
  it.each(TEMPLATES.map((each) => [each.name, each] as const))("%s holds both texts once, before the answer", (_, template) => {
    const text = request(template, "BE BRIEF", "WHO?");
    expect(text.indexOf("BE BRIEF")).toBeLessThan(text.indexOf("WHO?"));
    expect(text.endsWith(template.answer)).toBe(true);
    expect(request(template, "", "WHO?")).not.toContain("\n\n\n");
  });
});
