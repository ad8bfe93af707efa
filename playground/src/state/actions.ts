/** What a person can do with the document: generate, branch, turn versions over, fill in, rewrite. */
import { batch, computed, effect, signal } from "@preact/signals";
import { savedMs, type Meter } from "../core/meter";
import { childrenOf, textAt, type TreeNode } from "../core/tree";
import { randomSeed, storedSeed, type Draft } from "../core/request";
import { knownSettings, type Settings } from "../core/settings";
import type { Token } from "../core/tokens";
import { asFrame, NO_FRAME } from "../core/context";
import { countTokens, frameFor, promptBudget } from "./context";
import { key, loadModels, model } from "./access";
import { addGenerated, commitDocument, current, isEdited, numOpened, path, remove, select, show, text, theEditor, tree, write } from "./document";
import { run, type LiveChoice, type Progress } from "./generation";
import { announce, dialog, notice, notify, panel, problem, showError, type Notice } from "./page";
import { parameters, requireValues, settings, until } from "./settings";
import { isStrict, start } from "./start";

/** A completion that has ended, and what would produce it again. */
export interface Done {
  draft: Draft;
  fingerprint: string;
  texts: string[];
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
export const canRun = computed(() => !isRunning.value && model.value !== "" && proposal.value === null);

let abort = new AbortController();
/** Whether the last request was stopped by the person. */
export const wasStopped = () => abort.signal.aborted;
let numRuns = 0;

/** Begins a request that `stop` ends and that blocks the document meanwhile; returns its signal. */
export function begin(): AbortSignal {
  abort = new AbortController();
  batch(() => {
    isRunning.value = true;
    problem.value = null;
    notice.value = null;
  });
  theEditor().setReadOnly(true);
  return abort.signal;
}

export function end(): void {
  theEditor().setReadOnly(false);
  isRunning.value = false;
  isReconnecting.value = false;
}

/** Ends what is running; what has arrived stays. */
export function stop(): void {
  abort.abort();
}

export function nextSeed(): Pick<Draft, "seed" | "isSeedDrawn"> {
  const { seed } = settings.value;
  return typeof seed === "number" ? { seed } : { seed: randomSeed(), isSeedDrawn: true };
}

/** Continues the document. `extra` settings hold this time only. */
export async function generate(extra: Settings = {}): Promise<Progress | null> {
  if (!(await isReady())) return null;
  return attempt(async () => complete({ ...(await forDocument(drafted(text.value))), settings: { ...withoutSeed(), ...extra } }));
}

/** Shows what goes wrong before anything is generated, such as a memory that is too long. */
async function attempt(act: () => Promise<Progress | null>): Promise<Progress | null> {
  try {
    return await act();
  } catch (error) {
    showError(error);
    return null;
  }
}

/** Generates in place of what the document shows, which becomes a node first. Where nothing comes, it is shown again. */
async function replace(act: () => Promise<Progress | null>): Promise<Progress | null> {
  if (isEdited.value && text.value.trim() !== "") commitDocument();
  const [node, shown, cursor, opened] = [current.value, text.value, theEditor().cursor, numOpened];
  const last = await act();
  if (!last?.choices.length && opened === numOpened) {
    current.value = node;
    write(shown);
    if (shown.trim() !== "") show(commitDocument()); // a node that was split since has another part of it
    theEditor().setCursor(cursor);
  }
  return last;
}

/**
 * Waits for a draft, for which the server may be asked to count tokens. Throws where the document is another one then, or
 * is generated already: nothing would belong there.
 */
async function forDocument(draft: Promise<Draft>): Promise<Draft> {
  const [shown, opened] = [text.value, numOpened];
  const made = await draft;
  if (isRunning.value || opened !== numOpened) throw new DOMException("Nothing is sent for it.", "AbortError");
  if (text.value !== shown) throw new Error("The text was changed before it was sent: try again.");
  return made;
}

/**
 * Returns a draft that continues a prompt with the present settings and notes; `reserved` tokens are taken by a suffix. Throws
 * WrongValue where what is typed into a setting is no value.
 */
export async function drafted(prompt: string, reserved = 0): Promise<Draft> {
  requireValues("write");
  return { model: model.value, prompt, ...(await frameFor(prompt, reserved)), settings: withoutSeed(), ...nextSeed(), ...(until.value ? { until: until.value } : {}) };
}

/** Goes back to where the last completion began, and generates again: with its seed, or another. */
export async function again(isSame: boolean): Promise<void> {
  const last = done.value;
  if (!last || !(await isReady())) return;
  if (isSame) {
    await restart(last.draft);
    return;
  }
  await attempt(async () => {
    const { prompt, suffix } = last.draft;
    const draft = await forDocument(suffix === undefined ? drafted(prompt) : draftedBetween(prompt, suffix));
    return restart({ ...draft, seed: randomSeed(), isSeedDrawn: true });
  });
}

/** The texts that were generated for the place where the document's last generation is, and which of them is shown. */
export const versions = computed<{ at: number; ids: number[] }>(() => {
  const last = path.value.findLast((node) => node.origin === "generated");
  const ids = last ? childrenOf(tree.value, last.parent).filter((node) => node.origin === "generated").map((node) => node.id) : [];
  return { at: last ? ids.indexOf(last.id) : 0, ids };
});

/** Shows a node's document: Same again and Another are then about the generation that made it. */
export function turnTo(id: number): void {
  select(id);
  recall();
  const { at, ids } = versions.value;
  if (ids.length > 1) announce(`Version ${at + 1} of ${ids.length}.`);
}

/** Makes the document's last generation, which may be of another day, the one that can be repeated and shared. */
export function recall(): void {
  const at = path.value.findLastIndex((node) => node.origin === "generated" && node.run?.model);
  const node = path.value[at];
  done.value = node?.run ? { draft: draftOf(node), fingerprint: node.run.fingerprint, texts: textsLike(node) } : null;
}

/** Removes a node of the tree, with everything that continues it; the notice of it can put that back. */
export function removeNode(id: number): void {
  const putBack = remove(id);
  recall();
  const act = () => {
    if (putBack()) recall();
    else notify("It cannot be put back: the text before it has changed, or is another story's.");
  };
  notify("Removed from the tree.", { label: "Put it back", act });
}

function draftOf(node: TreeNode): Draft {
  const { model: name, seed, suffix, until: end, frame: around, settings: values } = node.run as NonNullable<TreeNode["run"]>;
  const frame = asFrame(around);
  return {
    model: name,
    prompt: textAt(tree.value, node.parent),
    settings: knownSettings(values, parameters),
    seed: storedSeed(seed),
    ...(frame ? { frame } : {}),
    ...(suffix === undefined ? {} : { suffix }),
    ...(end ? { until: end } : {}),
  };
}

/** Returns the texts of all choices of the request that generated a node. */
function textsLike({ parent, run }: TreeNode): string[] {
  const isAlike = (other: TreeNode) => other.run?.seed === run?.seed && JSON.stringify(other.run?.settings) === JSON.stringify(run?.settings);
  return childrenOf(tree.value, parent).filter(isAlike).map((node) => node.text);
}

function withoutSeed() {
  const { seed: _, ...others } = settings.value;
  return others;
}

/** Generates a draft again, from where it began. */
export function restart(draft: Draft): Promise<Progress | null> {
  return replace(() => {
    write(draft.prompt + (draft.suffix ?? ""));
    return draft.suffix === undefined ? complete(draft) : fill(draft.prompt.length, draft);
  });
}

/** Cuts the document where an alternative was possible, takes it, and goes on. */
export async function branch(from: number, alternative: string): Promise<void> {
  if (!(await isReady())) return;
  await replace(() => {
    write(text.value.slice(0, from) + alternative);
    return generate();
  });
}

/** Generates the rest of the document again, predicting that most of it stays as it is. */
export async function rewrite(from: number): Promise<void> {
  const prediction = text.value.slice(from);
  if (!prediction || !(await isReady())) return;
  const prompt = text.value.slice(0, from);
  await replace(() => {
    write(prompt);
    return attempt(async () => {
      const { until: _, ...whole } = await forDocument(drafted(prompt));
      return complete({ ...whole, prediction });
    });
  });
}

/** Generates text for the cursor's place. It is a proposal until it is accepted. */
export async function fillIn(): Promise<void> {
  if (!(await isReady())) return;
  const at = theEditor().cursor;
  await attempt(async () => fill(at, await forDocument(draftedBetween(text.value.slice(0, at), text.value.slice(at)))));
}

/** What follows takes at most a third of the context: it is cut at its end, where it matters least. */
async function draftedBetween(prompt: string, suffix: string): Promise<Draft> {
  const room = Math.floor((promptBudget() ?? Infinity) / 3);
  let sent = suffix.slice(0, room * 8);
  for (let size = room > 0 ? await countTokens(sent) : 0; size > room && sent; size = await countTokens(sent)) {
    sent = sent.slice(0, Math.floor((sent.length * room * 0.95) / size));
  }
  const draft = await drafted(prompt, await countTokens(sent));
  return { ...draft, suffix, ...(sent === suffix ? {} : { frame: { ...(draft.frame ?? NO_FRAME), follow: sent.length } }) };
}

async function fill(at: number, draft: Draft): Promise<Progress | null> {
  const base = commitDocument();
  const before = text.value;
  let to = at;
  const progress = await during(draft, base, (fresh) => {
    theEditor().insert(to, fresh.text, placed(fresh.tokens, at), numRuns);
    to += fresh.text.length;
  });
  if (!progress || to === at) return progress;
  proposal.value = { from: at, to, before, after: text.value };
  theEditor().setReadOnly(true);
  announce("Text is proposed. Press Enter to accept it, Escape to reject it.");
  return progress;
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

async function complete(draft: Draft): Promise<Progress | null> {
  const base = commitDocument();
  const start = text.value.length;
  return during(draft, base, (fresh) => {
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
  const signal = begin();
  numRuns += 1;
  const shown = { length: 0, numTokens: 0 };
  let last: Progress | null = null;
  live.value = [];
  announce("Generating.");
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
    await run(draft, { key: key.value, signal, onReconnect: (lost) => (isReconnecting.value = lost) }, onProgress);
  } catch (error) {
    showError(error);
  }
  finish(draft, base, last);
  return last;
}

function finish(draft: Draft, base: number, last: Progress | null): void {
  end();
  document.documentElement.dataset.completions = String(numRuns); // what drives the page can wait for this
  if (!last || last.choices.length === 0) return;
  const { isSeedDrawn: _, ...asked } = draft;
  const sent = { ...asked, seed: last.seed };
  batch(() => {
    const kept = draft.suffix === undefined ? last.choices.filter((choice) => choice?.text) : [];
    const ids = kept.map((choice) => addGenerated(base, nodeOf(choice, sent, last.fingerprint)));
    if (ids[0] !== undefined) current.value = ids[0];
    done.value = { draft: sent, fingerprint: last.fingerprint, texts: last.choices.map((choice) => choice.text) };
    if (last.choices.length > 1) panel.value = "candidates";
  });
  const saved = savedMs(last.meter);
  announce(`${abort.signal.aborted ? "Stopped" : "Done"}: ${last.meter.completionTokens} tokens.`);
  if (draft.prediction !== undefined) {
    notify(
      `${last.meter.acceptedTokens} predicted tokens were accepted, ${last.meter.rejectedTokens} rejected` +
        (saved === null ? "." : `: about ${(saved / 1000).toFixed(2)} seconds saved.`),
    );
  }
  if (!abort.signal.aborted && draft.suffix === undefined) explainEnd(draft, last);
}

/** What was said of the end of a text; it goes when the text changes. */
let said: { of: string; notice: Notice | null } | null = null;
effect(() => {
  const now = text.value;
  if (said === null || said.of === now) return;
  if (notice.peek() === said.notice) notice.value = null;
  said = null;
});

/** A text that the model itself has ended can go on: Onward bans its end token. */
function explainEnd(draft: Draft, { choices }: Progress): void {
  const isEnded = choices.every((choice) => choice.finish === "stop") && draft.settings.stop === undefined;
  const isEmpty = choices.every((choice) => choice.text === "");
  if (!isEnded && !isEmpty) return;
  const continueAnyway = { label: "Continue anyway", act: () => void generate({ ban_eos_token: true }) };
  notify(isEmpty ? "The model ends the text here: it generated nothing." : "The model ended the text here.", isStrict ? undefined : continueAnyway);
  said = { of: text.value, notice: notice.value };
}

function nodeOf(choice: LiveChoice, draft: Draft, fingerprint: string) {
  return { origin: "generated" as const, text: choice.text, tokens: choice.tokens, run: runOf(draft, fingerprint, choice.finish) };
}

function runOf({ model: name, settings: values, seed, suffix, until: end, frame }: Draft, fingerprint: string, finish: string) {
  return { model: name, settings: values, seed, fingerprint, finish, ...(suffix === undefined ? {} : { suffix }), ...(end ? { until: end } : {}), ...(frame ? { frame } : {}) };
}

/** Whether requests can be sent; opens the key field where a key is missing. */
export async function isReady(): Promise<boolean> {
  if (isRunning.value || proposal.value) return false;
  if (model.value || (await loadModels())) return true;
  if (start.requiresKey) dialog.value = "key";
  return false;
}
