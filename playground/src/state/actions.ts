/** What a person can do with the document: generate, branch, fill in, rewrite, score, share. */
import { batch, computed, signal } from "@preact/signals";
import { streamCompletion } from "../api/client";
import { savedMs, type Meter } from "../core/meter";
import { digest, fromHash, toHash, type Shared } from "../core/permalink";
import { randomSeed, scoreBody, type Draft } from "../core/request";
import { knownSettings } from "../core/settings";
import { score, type Score } from "../core/surprise";
import { TokenAligner, type Token } from "../core/tokens";
import { key, loadModels, model, models, selectModel } from "./access";
import { addGenerated, commitDocument, current, show, text, theEditor, tree, write } from "./document";
import { run, type LiveChoice, type Progress } from "./generation";
import { announce, dialog, notice, panel, problem, shading, showError } from "./page";
import { parameters, settings } from "./settings";
import { start } from "./start";

/** A completion that has ended, and what would produce it again. */
export interface Done {
  draft: Draft;
  fingerprint: string;
  texts: string[];
  meter: Meter;
  /** The node that was continued. */
  base: number;
}

/** Text that was filled in and is neither accepted nor rejected yet. */
export interface Proposal {
  from: number;
  to: number;
  before: string;
  after: string;
}

export const isRunning = signal(false);
export const isReconnecting = signal(false);
export const live = signal<readonly LiveChoice[]>([]);
export const meter = signal<Meter | null>(null);
export const done = signal<Done | null>(null);
export const proposal = signal<Proposal | null>(null);
export const scored = signal<Score | null>(null);
/** A permalink that was opened and not run yet. */
export const shared = signal<Shared | null>(null);
export const canRun = computed(() => !isRunning.value && model.value !== "" && proposal.value === null);

let abort = new AbortController();
let numRuns = 0;

/** Ends what is running; what has arrived stays. */
export function stop(): void {
  abort.abort();
}

export function nextSeed(): number {
  return typeof settings.value.seed === "number" ? settings.value.seed : randomSeed();
}

/** Continues the document. */
export async function generate(seed = nextSeed()): Promise<void> {
  if (!(await isReady())) return;
  const { seed: _, ...others } = settings.value;
  await complete({ model: model.value, prompt: text.value, settings: others, seed });
}

/** Goes back to where the last completion began, and generates again: with its seed, or another. */
export async function again(isSame: boolean): Promise<void> {
  const last = done.value;
  if (!last || !(await isReady())) return;
  await restart(isSame ? last.draft : { ...last.draft, model: model.value, settings: withoutSeed(), seed: randomSeed() });
}

function withoutSeed() {
  const { seed: _, ...others } = settings.value;
  return others;
}

async function restart(draft: Draft): Promise<void> {
  if (draft.suffix !== undefined) {
    write(draft.prompt + draft.suffix);
    return fill(draft.prompt.length, draft);
  }
  write(draft.prompt);
  await complete(draft);
}

/** Cuts the document where an alternative was possible, takes it, and goes on. */
export async function branch(from: number, alternative: string): Promise<void> {
  if (!(await isReady())) return;
  if (text.value.trim() !== "") commitDocument();
  write(text.value.slice(0, from) + alternative);
  await generate();
}

/** Generates the rest of the document again, predicting that most of it stays as it is. */
export async function rewrite(from: number): Promise<void> {
  const prediction = text.value.slice(from);
  if (!prediction || !(await isReady())) return;
  commitDocument();
  const prompt = text.value.slice(0, from);
  write(prompt);
  await complete({ model: model.value, prompt, settings: withoutSeed(), seed: nextSeed(), prediction });
}

/** Generates text for the cursor's place. It is a proposal until it is accepted. */
export async function fillIn(): Promise<void> {
  if (!(await isReady())) return;
  const at = theEditor().cursor;
  const draft = { model: model.value, prompt: text.value.slice(0, at), suffix: text.value.slice(at) };
  await fill(at, { ...draft, settings: withoutSeed(), seed: nextSeed() });
}

async function fill(at: number, draft: Draft): Promise<void> {
  const base = commitDocument();
  const before = text.value;
  let to = at;
  const progress = await during(draft, base, (fresh) => {
    theEditor().insert(to, fresh.text, placed(fresh.tokens, at), numRuns);
    to += fresh.text.length;
  });
  if (!progress || to === at) return;
  proposal.value = { from: at, to, before, after: text.value };
  theEditor().setReadOnly(true);
  announce("Text is proposed. Press Enter to accept it, Escape to reject it.");
}

export function accept(): void {
  const last = done.value;
  const proposed = proposal.value;
  if (!proposed || !last) return;
  endProposal();
  current.value = null;
  const base = commitDocument(proposed.from);
  const filled = proposed.after.slice(proposed.from, proposed.to);
  const tokens = theEditor().tokens.filter(({ token }) => token.from >= proposed.from && token.to <= proposed.to);
  const id = addGenerated(base, {
    origin: "generated",
    text: filled,
    tokens: tokens.map(({ token }) => ({ ...token, from: token.from - proposed.from, to: token.to - proposed.from })),
    run: runOf(last.draft, last.fingerprint, "stop"),
  });
  current.value = id;
  commitDocument();
  announce("Accepted.");
}

export function reject(): void {
  const proposed = proposal.value;
  if (!proposed) return;
  endProposal();
  write(proposed.before);
  theEditor().setCursor(proposed.from);
  announce("Rejected.");
}

function endProposal(): void {
  proposal.value = null;
  theEditor().setReadOnly(false);
  theEditor().focus();
}

async function complete(draft: Draft): Promise<void> {
  const base = commitDocument();
  const start = text.value.length;
  await during(draft, base, (fresh) => {
    theEditor().insert(text.value.length, fresh.text, placed(fresh.tokens, start), numRuns);
  });
}

function placed(tokens: readonly Token[], by: number): Token[] {
  return tokens.map((token) => ({ ...token, from: token.from + by, to: token.to + by }));
}

interface Fresh {
  text: string;
  tokens: readonly Token[];
}

/** Runs a completion; `insert` gets what is new of the first choice. Adds all choices below `base` at the end. */
async function during(draft: Draft, base: number, insert: (fresh: Fresh) => void): Promise<Progress | null> {
  abort = new AbortController();
  numRuns += 1;
  const shown = { length: 0, numTokens: 0 };
  let last: Progress | null = null;
  batch(() => {
    isRunning.value = true;
    problem.value = null;
    notice.value = "";
    scored.value = null;
    live.value = [];
    shared.value = null;
  });
  announce("Generating.");
  theEditor().setReadOnly(true);
  const onProgress = (progress: Progress) => {
    last = progress;
    if (progress.choices.length === 0) return;
    meter.value = progress.meter;
    live.value = progress.choices.map((choice) => ({ ...choice }));
    const [first] = progress.choices;
    if (!first || first.text.length === shown.length) return;
    insert({ text: first.text.slice(shown.length), tokens: first.tokens.slice(shown.numTokens) });
    shown.length = first.text.length;
    shown.numTokens = first.tokens.length;
  };
  try {
    await run(draft, { key: key.value, signal: abort.signal, onReconnect: (lost) => (isReconnecting.value = lost) }, onProgress);
  } catch (error) {
    showError(error);
  }
  finish(draft, base, last);
  return last;
}

function finish(draft: Draft, base: number, last: Progress | null): void {
  theEditor().setReadOnly(false);
  isRunning.value = false;
  isReconnecting.value = false;
  document.documentElement.dataset.completions = String(numRuns); // what drives the page can wait for this
  if (!last || last.choices.length === 0) return;
  batch(() => {
    const kept = draft.suffix === undefined ? last.choices.filter((choice) => choice?.text) : [];
    const ids = kept.map((choice) => addGenerated(base, nodeOf(choice, draft, last.fingerprint)));
    if (ids[0] !== undefined) current.value = ids[0];
    done.value = { draft, base, fingerprint: last.fingerprint, texts: last.choices.map((choice) => choice.text), meter: last.meter };
    if (last.choices.length > 1) panel.value = "candidates";
  });
  const saved = savedMs(last.meter);
  announce(`${abort.signal.aborted ? "Stopped" : "Done"}: ${last.meter.completionTokens} tokens.`);
  if (draft.prediction !== undefined) {
    notice.value =
      `${last.meter.acceptedTokens} predicted tokens were accepted, ${last.meter.rejectedTokens} rejected` +
      (saved === null ? "." : `: about ${(saved / 1000).toFixed(2)} seconds saved.`);
  }
  if (!abort.signal.aborted && last.choices.every((choice) => choice.text === "")) {
    notice.value = "The model ends the text here: it generated nothing. Press Another, or write a few words more.";
  }
  checkShared(last);
}

function nodeOf(choice: LiveChoice, draft: Draft, fingerprint: string) {
  return { origin: "generated" as const, text: choice.text, tokens: choice.tokens, run: runOf(draft, fingerprint, choice.finish) };
}

function runOf(draft: Draft, fingerprint: string, finish: string) {
  return { model: draft.model, settings: draft.settings, seed: draft.seed, fingerprint, finish };
}

/** Shows a candidate of the last completion, or any other generated text beside it. */
export function choose(id: number): void {
  show(id);
  theEditor().focus();
}

/** Scores the document: every token of it gets its log-probability, in context. */
export async function scoreDocument(): Promise<void> {
  const written = text.value;
  if (!written || !(await isReady())) return;
  abort = new AbortController();
  isRunning.value = true;
  problem.value = null;
  announce("Scoring.");
  theEditor().setReadOnly(true);
  try {
    const tokens: Token[] = [];
    const aligner = new TokenAligner();
    for await (const chunk of streamCompletion(scoreBody(model.value, written), { key: key.value, signal: abort.signal })) {
      for (const part of chunk.choices) tokens.push(...aligner.push(part.text, part.logprobs));
    }
    const wasGenerated = new Set(theEditor().tokens.filter((each) => each.isGenerated).map(({ token }) => token.from));
    theEditor().setTokens(tokens.map((token) => ({ token, isGenerated: wasGenerated.has(token.from) })));
    scored.value = score(tokens, written);
    shading.value = "surprise";
    announce(scored.value ? `${scored.value.bitsPerByte.toFixed(2)} bits per byte.` : "Nothing to score.");
  } catch (error) {
    showError(error);
  } finally {
    theEditor().setReadOnly(false);
    isRunning.value = false;
  }
}

/** Returns the address of the last completion, or of the document where it has been edited since. */
export async function permalink(): Promise<string> {
  const last = done.value;
  const isLast = last !== null && last.texts.some((each) => resultOf(last.draft, each) === text.value);
  const what: Shared = isLast
    ? { ...last.draft, fingerprint: last.fingerprint, digest: digest(last.texts) }
    : { model: model.value, prompt: text.value, settings: withoutSeed(), seed: nextSeed() };
  return location.origin + location.pathname + (await toHash(what));
}

function resultOf(draft: Draft, generated: string): string {
  return draft.prompt + generated + (draft.suffix ?? "");
}

let expected: Shared | null = null;

/** Opens what the address holds, if anything. It is run when the person asks for it. */
export async function openPermalink(): Promise<void> {
  try {
    const found = await fromHash(location.hash);
    if (!found) return;
    history.replaceState(null, "", location.pathname);
    batch(() => {
      shared.value = found;
      settings.value = knownSettings(found.settings, parameters);
    });
    if (text.value.trim() !== "" && tree.value.nodes.size > 0) commitDocument();
    current.value = null;
    write(found.prompt + (found.suffix ?? ""));
    if (models.value.includes(found.model)) await selectModel(found.model);
  } catch (error) {
    showError(error);
  }
}

/** Runs an opened permalink, and says whether the result is the same. */
export async function reproduce(): Promise<void> {
  const found = shared.value;
  if (!found || !(await isReady())) return;
  if (!models.value.includes(found.model)) {
    problem.value = { message: `This server has no model '${found.model}'. Choose one and press Continue; the text will differ.`, param: "model" };
    return;
  }
  expected = found;
  await restart({ ...found, settings: knownSettings(found.settings, parameters) });
  expected = null;
}

function checkShared({ choices, fingerprint }: Progress): void {
  if (!expected?.digest || abort.signal.aborted) return;
  const isSame = digest(choices.map((choice) => choice.text)) === expected.digest;
  if (isSame) notice.value = "The same bytes as when this was shared.";
  else if (fingerprint !== expected.fingerprint) {
    notice.value = `The text differs: this server's fingerprint is ${fingerprint}, that of the link ${expected.fingerprint}.`;
  } else notice.value = "The text differs, although the fingerprint is the same. Please report this.";
  announce(notice.value);
}

/** Whether requests can be sent; opens the key field where a key is missing. */
async function isReady(): Promise<boolean> {
  if (isRunning.value || proposal.value) return false;
  if (model.value || (await loadModels())) return true;
  if (start.requiresKey) dialog.value = "key";
  return false;
}
