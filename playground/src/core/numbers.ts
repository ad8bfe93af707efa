/** The probabilities of a text as files: a table, JSON, and a picture of the heat map. */
import { csv } from "./csv";
import { bitsOf, probabilityClass, surpriseClass } from "./surprise";
import type { Token } from "./tokens";

/** Returns a table for spreadsheets. */
export function numbersCsv(tokens: readonly Token[], text: string): string {
  const rows = tokens.map(({ from, to, ids, logprob }, index) => [
    index, from, to, text.slice(from, to), ids.join(" "), logprob, logprob === null ? null : bitsOf(logprob),
  ]);
  return csv([["index", "from", "to", "text", "ids", "logprob", "bits"], ...rows]);
}

export function numbersJson(tokens: readonly Token[], text: string, facts: Readonly<Record<string, unknown>>): string {
  const rows = tokens.map(({ from, to, ids, logprob, alternatives }) => ({ text: text.slice(from, to), from, to, ids, logprob, alternatives }));
  return JSON.stringify({ ...facts, text, tokens: rows }, null, 1);
}

/** A piece of a token on one line of the picture. */
export interface Box {
  text: string;
  x: number;
  y: number;
  width: number;
  color: string;
}

export interface Picture {
  boxes: Box[];
  width: number;
  height: number;
}

export const FONT_PX = 16;
const LINE_PX = 26;
const MARGIN_PX = 20;
const WIDTH_PX = 860;
const COLORS = {
  probability: ["", "#fdf3dc", "#fae3b4", "#f6cd85", "#eeb05c", "#e29340"],
  surprise: ["", "#e9f0f7", "#cfe0ef", "#aecbe4", "#f1d9a8", "#e6ad55"],
};

/** Lays tokens out in lines. `measure` returns the width of a text in pixels. Text without a probability has no colour. */
export function picture(tokens: readonly Token[], text: string, kind: keyof typeof COLORS, measure: (text: string) => number): Picture {
  const boxes: Box[] = [];
  let [x, y] = [MARGIN_PX, MARGIN_PX];
  const place = (piece: string, logprob: number | null) => {
    const classOf = kind === "probability" ? probabilityClass : surpriseClass;
    piece.split("\n").forEach((part, index) => {
      if (index > 0) [x, y] = [MARGIN_PX, y + LINE_PX];
      const width = part === "" ? 0 : measure(part);
      if (x + width > WIDTH_PX - MARGIN_PX && x > MARGIN_PX) [x, y] = [MARGIN_PX, y + LINE_PX];
      if (part !== "") boxes.push({ text: part, x, y, width, color: logprob === null ? "" : (COLORS[kind][classOf(logprob)] ?? "") });
      x += width;
    });
  };
  let at = 0;
  for (const token of tokens) {
    for (const word of text.slice(at, token.from).split(/(?<=\s)/)) if (word) place(word, null);
    place(text.slice(token.from, token.to), token.logprob);
    at = token.to;
  }
  for (const word of text.slice(at).split(/(?<=\s)/)) if (word) place(word, null);
  return { boxes, width: WIDTH_PX, height: y + LINE_PX + MARGIN_PX };
}

export function svg({ boxes, width, height }: Picture): string {
  const parts = boxes.map(({ text, x, y, width: wide, color }) => {
    const shade = color ? `<rect x="${x}" y="${y}" width="${wide}" height="${LINE_PX - 3}" fill="${color}"/>` : "";
    return `${shade}<text x="${x}" y="${y + FONT_PX + 1}" xml:space="preserve">${escaped(text)}</text>`;
  });
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="Georgia, serif" font-size="${FONT_PX}" fill="#1d1c1a">` +
    `<rect width="${width}" height="${height}" fill="#fdfcfa"/>${parts.join("")}</svg>\n`
  );
}

/** Characters that XML does not have are left out. */
function escaped(text: string): string {
  return text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|\p{Surrogate}/gu, "").replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** Paints the picture; returns it as a PNG. `scale`: pixels per pixel of the layout. */
export async function png({ boxes, width, height }: Picture, scale: number): Promise<Blob> {
  const canvas = new OffscreenCanvas(width * scale, height * scale);
  const context = canvas.getContext("2d");
  if (!context) throw new Error("This browser cannot paint a picture.");
  context.scale(scale, scale);
  context.font = `${FONT_PX}px Georgia, serif`;
  context.fillStyle = "#fdfcfa";
  context.fillRect(0, 0, width, height);
  for (const { text, x, y, width: wide, color } of boxes) {
    if (color) {
      context.fillStyle = color;
      context.fillRect(x, y, wide, LINE_PX - 3);
    }
    context.fillStyle = "#1d1c1a";
    context.fillText(text, x, y + FONT_PX + 1);
  }
  return canvas.convertToBlob({ type: "image/png" });
}
