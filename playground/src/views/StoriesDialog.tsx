/** All stories of this browser: open, find, name, export and remove them, or read one from a file. */
import { signal, useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect } from "preact/hooks";
import { canRun } from "../state/actions";
import { dialog, problem } from "../state/page";
import {
  exportStory, importStory, keepNow, newStory, openStory, putStoryBack, removed, removeStory, renameStory, searchStories, shownTitle, stories, storyId, type ExportKind,
  type StoryInfo,
} from "../state/stories";
import { Menu } from "./Menu";
import { ModalDialog } from "./ModalDialog";

const SEARCH_DELAY_MS = 150;
const EXPORTS: [ExportKind, string][] = [
  ["txt", "Export as plain text"],
  ["md", "Export as Markdown"],
  ["json", "Export with its tree"],
];
const renaming = signal("");

export function StoriesDialog() {
  const words = useSignal("");
  const found = useSignal<Set<string> | null>(null);
  useLayoutEffect(() => {
    removed.value = null;
    keepNow(); // later, the list would be sorted anew under the pointer
  }, []);
  useEffect(() => {
    if (words.value.trim() === "") {
      found.value = null;
      return undefined;
    }
    const timer = setTimeout(async () => (found.value = await searchStories(words.value)), SEARCH_DELAY_MS);
    return () => clearTimeout(timer);
  }, [words.value]);
  const shown = stories.value.filter(({ id }) => found.value?.has(id) ?? true);
  const closeAfter = async (act: Promise<unknown>) => {
    if ((await act) !== false) dialog.value = null;
  };
  const upload = (event: Event) => {
    const input = event.currentTarget as HTMLInputElement;
    const [file] = input.files ?? [];
    if (file) void closeAfter(importStory(file)).finally(() => (input.value = ""));
  };
  return (
    <ModalDialog title="Stories">
      <div class="toolbar">
        <button type="button" class="primary" disabled={!canRun.value} onClick={() => void closeAfter(newStory())}>
          New story
        </button>
        <label class="button">
          Import
          <input class="visually-hidden" type="file" disabled={!canRun.value} onChange={upload} />
        </label>
        <span class="spacer" />
        <input type="search" class="find" aria-label="Find in all stories" placeholder="Find" value={words.value} onInput={(event) => (words.value = event.currentTarget.value)} />
      </div>
      {problem.value && (
        <p class="wrong" role="alert">
          {problem.value.message}
        </p>
      )}
      <ul class="stories">
        {shown.map((story) => (
          <li key={story.id} class={story.id === storyId.value ? "open" : ""}>
            {renaming.value === story.id ? <Name story={story} /> : <Story story={story} onOpen={() => void closeAfter(openStory(story.id))} />}
            <Menu label={`Change ${shownTitle(story)}`} face="⋯" class="icon">
              <button type="button" onClick={() => (renaming.value = story.id)}>
                Rename
              </button>
              {EXPORTS.map(([kind, label]) => (
                <button key={kind} type="button" onClick={() => void exportStory(story.id, kind)}>
                  {label}
                </button>
              ))}
              <button type="button" disabled={!canRun.value} onClick={() => void removeStory(story.id)}>
                Remove
              </button>
            </Menu>
          </li>
        ))}
      </ul>
      {shown.length === 0 && words.value.trim() !== "" && <p class="hint">No story contains that.</p>}
      <div role="status">
        {removed.value && (
          <p class="row">
            “{shownTitle(removed.value.info)}” was removed.
            <button type="button" onClick={() => void putStoryBack()}>
              Put it back
            </button>
          </p>
        )}
      </div>
      <p class="hint">Stories stay in this browser. Files of Mikupad and KoboldAI, character cards and plain text are read too.</p>
    </ModalDialog>
  );
}

function Story({ story, onOpen }: { story: StoryInfo; onOpen: () => void }) {
  const { words, changed } = story;
  return (
    <button type="button" class="story" disabled={!canRun.value} aria-current={story.id === storyId.value ? "true" : undefined} onClick={onOpen}>
      <b>{shownTitle(story)}</b>
      <small>
        {words.toLocaleString("en")} {words === 1 ? "word" : "words"} · {new Date(changed).toLocaleString()}
      </small>
    </button>
  );
}

function Name({ story }: { story: StoryInfo }) {
  const finish = (name: string | null) => {
    if (renaming.value !== story.id) return;
    renaming.value = "";
    if (name !== null) void renameStory(story.id, name);
  };
  return (
    <input
      class="story"
      aria-label="Title"
      ref={(element) => element?.focus()}
      defaultValue={story.title || story.start}
      onBlur={(event) => finish(event.currentTarget.value)}
      onKeyDown={(event) => {
        if (event.key === "Enter") finish(event.currentTarget.value);
        if (event.key !== "Escape") return;
        event.preventDefault(); // the dialog stays
        finish(null);
      }}
    />
  );
}
