/** Links that hold a completion: made of the last one, opened, and reproduced. */
import { batch, effect, signal } from "@preact/signals";
import { digest, fromHash, toHash, type Shared } from "../core/permalink";
import type { Draft } from "../core/request";
import { knownSettings } from "../core/settings";
import { models, refreshModels, selectModel } from "./access";
import { done, drafted, isReady, isRunning, restart, wasStopped, type Done } from "./actions";
import { text, write } from "./document";
import { dialog, notify, problem, showError } from "./page";
import { parameters, replaceSettings } from "./settings";
import { newStory, storyId } from "./stories";

/** A permalink that was opened and not run yet. */
export const shared = signal<Shared | null>(null);
effect(() => {
  if (isRunning.value) shared.value = null;
});
effect(() => {
  void storyId.value;
  shared.value = null; // it would be written over another story
});

/** The text whose link is in the address bar. */
let linked: string | null = null;
effect(() => {
  const now = text.value;
  if (linked === null || linked === now) return;
  linked = null;
  history.replaceState(null, "", location.pathname); // a reload would open the link in place of the story
});

/** Puts a link into the address bar until the text changes. */
export function showLink(link: string): void {
  linked = text.value;
  history.replaceState(null, "", link);
}

/** What the dialog of programs shows. */
export const draftToCopy = signal<Draft | null>(null);

/** Returns the address of the last completion, or of the document where it has been edited since. */
export async function permalink(): Promise<string> {
  const last = lastDone();
  const what: Shared = last ? { ...last.draft, fingerprint: last.fingerprint, digest: digest(last.texts) } : await drafted(text.value);
  return location.origin + location.pathname + (await toHash(what));
}

/** Opens the dialog of programs with the last completion, or with one that would continue a document that was edited since. */
export async function showProgram(): Promise<void> {
  try {
    draftToCopy.value = lastDone()?.draft ?? (await drafted(text.value));
    dialog.value = "copy"; // not before: the dialog would grow under the pointer
  } catch (error) {
    showError(error);
  }
}

function lastDone(): Done | null {
  const last = done.value;
  const isLast = last?.texts.some((each) => last.draft.prompt + each + (last.draft.suffix ?? "") === text.value);
  return isLast ? last : null;
}

/** Opens what the address holds, if anything, as a story of its own. It is run when the person asks for it. */
export async function openPermalink(): Promise<void> {
  try {
    const found = await fromHash(location.hash);
    if (!found) return;
    history.replaceState(null, "", location.pathname);
    if (!(await newStory())) return;
    batch(() => {
      shared.value = found;
      replaceSettings(knownSettings(found.settings, parameters));
    });
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
  if (!models.value.includes(found.model)) await refreshModels();
  if (!models.value.includes(found.model)) {
    problem.value = { message: `This server has no model '${found.model}'. Choose one and press Continue; the text will differ.`, param: "model" };
    return;
  }
  const { digest: expected, fingerprint, ...draft } = found;
  const last = await restart({ ...draft, settings: knownSettings(found.settings, parameters) });
  if (!last || !expected || draft.seed === null || wasStopped()) return;
  if (digest(last.choices.map((choice) => choice.text)) === expected) notify("The same bytes as when this was shared.");
  else if (last.fingerprint !== fingerprint) {
    notify(`The text differs: this server's fingerprint is ${last.fingerprint}, that of the link ${fingerprint}.`);
  } else notify("The text differs, although the fingerprint is the same. Please report this.");
}
