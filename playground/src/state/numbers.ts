/** Exports of the document's probabilities, and the surprise of two texts. */
import { signal } from "@preact/signals";
import { FONT_PX, numbersCsv, numbersJson, picture, png, svg } from "../core/numbers";
import { score, type Score } from "../core/surprise";
import { model } from "./access";
import { text, theEditor } from "./document";
import { download } from "./download";
import { announce, problem, shading, showError } from "./page";
import { scored, scoreText } from "./scoring";
import { fileName, shownTitle, startOf, title } from "./stories";

export type NumbersKind = "csv" | "json" | "svg" | "png";
const MAX_PICTURE_CHARS = 60_000;
const PNG_SCALE = 2;

/** Downloads the tokens of the document that have a probability. */
export async function exportNumbers(kind: NumbersKind): Promise<void> {
  try {
    const tokens = theEditor().tokens.map(({ token }) => token);
    const written = text.value;
    const isPicture = kind === "svg" || kind === "png";
    if (isPicture && written.length > MAX_PICTURE_CHARS) throw new Error(`A picture shows at most ${MAX_PICTURE_CHARS.toLocaleString("en")} characters; export a table.`);
    const drawn = () => picture(tokens, written, shading.value === "probability" ? "probability" : "surprise", measure());
    const content = {
      csv: () => numbersCsv(tokens, written),
      json: () => numbersJson(tokens, written, { model: model.value, score: scored.value }),
      svg: () => svg(drawn()),
      png: () => png(drawn(), PNG_SCALE),
    }[kind];
    download(`${fileName(shownTitle({ title: title.value, start: startOf(written) }))}.${kind}`, new Blob([await content()]));
  } catch (error) {
    showError(error);
  }
}

function measure(): (text: string) => number {
  const context = new OffscreenCanvas(1, 1).getContext("2d");
  if (!context) throw new Error("This browser cannot measure text.");
  context.font = `${FONT_PX}px Georgia, serif`;
  return (piece) => context.measureText(piece).width;
}

export const texts = signal<[string, string]>(["", ""]);
export const textScores = signal<[Score | null, Score | null] | null>(null);
export const isScoringTexts = signal(false);

/** Scores both texts of the comparison with the selected model. */
export async function scoreTexts(): Promise<void> {
  if (isScoringTexts.value) return;
  isScoringTexts.value = true;
  problem.value = null;
  try {
    const abort = new AbortController();
    const [one, other] = texts.value;
    const found = await Promise.all([one, other].map(async (each) => score(await scoreText(model.value, each, abort.signal), each)));
    textScores.value = [found[0] ?? null, found[1] ?? null];
    announce("Both texts are scored.");
  } catch (error) {
    showError(error);
  } finally {
    isScoringTexts.value = false;
  }
}
