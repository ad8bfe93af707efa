/** The page of usage: an admin's key, what is asked of the ledger, and its answer. */
import { batch, computed, signal } from "@preact/signals";
import { ApiError, fetchJson } from "../api/client";
import { bars, dateOf, DAY, dayOf, grouped, GROUPS, problemOf, sumOf, usageCsv, usageJson, usageRows, type CostBucket, type Group, type UsageBucket, type UsageRow } from "../core/usage";
import { download } from "./download";

/** Apart from the playground's: an admin key completes nothing. */
const SESSION_NAME = "onward-admin-key";
const SHOWN_DAYS = 30;
/** The largest pages that the endpoints have, in days. */
const [USAGE_DAYS, COST_DAYS] = [31, 180];

export const adminKey = signal(rememberedKey());
/** Whether the server wants a key, or another one; null before it was asked, and where it has nothing to ask for. */
export const needsKey = signal<boolean | null>(null);
const today = Math.floor(Date.now() / 1000 / DAY) * DAY;
export const from = signal(dateOf(today - (SHOWN_DAYS - 1) * DAY));
export const to = signal(dateOf(today));
export const by = signal<Group[]>(["key"]);
/** Only the usage of this key and this model; null: of all. */
export const onlyKey = signal<string | null>(null);
export const onlyModel = signal<string | null>(null);
export const isLoading = signal(false);
/** Why nothing is shown; "" where something is. */
export const refusal = signal("");

interface Answer {
  rows: UsageRow[];
  start: number;
  end: number;
}
/** What the server has said of the dates that were asked for last; null before. */
export const answer = signal<Answer | null>(null);

export const keys = computed(() => new Map(answer.value?.rows.map((row) => [row.keyId, row.keyName || row.keyId]) ?? []));
export const models = computed(() => [...new Set(answer.value?.rows.map((row) => row.model) ?? [])].sort());
export const hasCosts = computed(() => answer.value?.rows.some((row) => row.cost !== 0) ?? false);
export const rows = computed(() =>
  (answer.value?.rows ?? []).filter((row) => (onlyKey.value === null || row.keyId === onlyKey.value) && (onlyModel.value === null || row.model === onlyModel.value)),
);
export const sums = computed(() => grouped(rows.value, by.value));
export const total = computed(() => sumOf(rows.value));
export const shownBars = computed(() => (answer.value ? bars(rows.value, answer.value.start, answer.value.end) : []));

function rememberedKey(): string {
  try {
    return sessionStorage.getItem(SESSION_NAME) ?? "";
  } catch {
    return "";
  }
}

/** Uses a key from now on. `remembers`: keep it for this browser tab, until it is closed. */
export async function useAdminKey(value: string, remembers: boolean): Promise<void> {
  adminKey.value = value;
  try {
    if (remembers) sessionStorage.setItem(SESSION_NAME, value);
    else sessionStorage.removeItem(SESSION_NAME);
  } catch {
    // private windows: the key stays in memory
  }
  await load();
}

/** Forgets the key and what it has shown. */
export function forgetKey(): void {
  loading?.abort();
  batch(() => {
    answer.value = null;
    refusal.value = "";
    needsKey.value = true;
    isLoading.value = false;
  });
  adminKey.value = "";
  try {
    sessionStorage.removeItem(SESSION_NAME);
  } catch {
    // private windows
  }
}

export function toggleGroup(name: Group): void {
  by.value = GROUPS.filter((each) => by.value.includes(each) !== (each === name));
}

let loading: AbortController | null = null;

/** Asks for the days from `from` to `to`. What was asked for before is no longer waited for. */
export async function load(): Promise<void> {
  loading?.abort();
  const wrong = problemOf(from.value, to.value);
  if (wrong) {
    batch(() => {
      refusal.value = wrong;
      isLoading.value = false;
    });
    return;
  }
  const current = (loading = new AbortController());
  isLoading.value = true;
  const [start, end] = [dayOf(from.value) ?? 0, (dayOf(to.value) ?? 0) + DAY];
  try {
    const usage = await pages<UsageBucket>("usage/completions", ["api_key_id", "model"], USAGE_DAYS, start, end, current.signal);
    const costs = await pages<CostBucket>("costs", ["api_key_id", "line_item"], COST_DAYS, start, end, current.signal);
    if (current.signal.aborted) return;
    batch(() => {
      answer.value = { rows: usageRows(usage, costs), start, end };
      refusal.value = "";
      needsKey.value = false;
      if (onlyKey.value !== null && !keys.value.has(onlyKey.value)) onlyKey.value = null;
      if (onlyModel.value !== null && !models.value.includes(onlyModel.value)) onlyModel.value = null;
    });
  } catch (error) {
    if (!current.signal.aborted) refuse(error);
  } finally {
    if (!current.signal.aborted) isLoading.value = false;
  }
}

interface Page<T> {
  data: T[];
  next_page: string | null;
}

/** Returns the buckets of all pages. */
async function pages<T>(path: string, groups: string[], limit: number, start: number, end: number, ended: AbortSignal): Promise<T[]> {
  const found: T[] = [];
  const query = new URLSearchParams({ start_time: String(start), end_time: String(end), bucket_width: "1d", limit: String(limit), group_by: groups.join(",") });
  for (let next: string | null = ""; next !== null; ) {
    if (next) query.set("page", next);
    const page: Page<T> = await fetchJson<Page<T>>(`v1/organization/${path}?${query}`, adminKey.value, undefined, ended);
    found.push(...page.data);
    next = page.next_page;
  }
  return found;
}

/** Says in one sentence why there is nothing to show. */
function refuse(error: unknown): void {
  const status = error instanceof ApiError ? error.status : 0;
  batch(() => {
    answer.value = null;
    needsKey.value = status === 404 ? null : status === 401 || status === 403;
    refusal.value = sentence(error, status);
  });
}

function sentence(error: unknown, status: number): string {
  switch (status) {
    case 401:
      return adminKey.value ? "The server does not accept this key." : "";
    case 403:
      return "This is not an admin key: only an admin key sees what all keys used.";
    case 404:
      return "This server has no ledger: start it with --data-dir or --database.";
    default:
      return error instanceof Error ? error.message : String(error);
  }
}

/** Downloads the table. */
export function exportUsage(kind: "csv" | "json"): void {
  if (answer.value === null) return;
  const { start, end } = answer.value;
  const content = (kind === "csv" ? usageCsv : usageJson)(sums.value, by.value);
  download(`onward-usage-${dateOf(start)}-${dateOf(end - DAY)}.${kind}`, new Blob([content], { type: kind === "csv" ? "text/csv" : "application/json" }));
}
