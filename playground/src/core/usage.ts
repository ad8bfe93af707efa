/** What keys used: rows of the ledger by day, key and model; their sums, exports, and the bars of a plot. Pure. */
import { csv, type Cell } from "./csv";

export const DAY = 86_400;
export const MAX_DAYS = 1100;
/** Bars that a plot has room for: more days than this are drawn by 7, then by 30 days. */
const MAX_BARS = 62;
/** Units of cost that are one of the currency. The ledger counts them as integers, so that sums are exact. */
const MICRO = 1_000_000;

/** What one key used of one model on one day. `day` is its beginning in Unix seconds; `keyId` is "" without a key. */
export interface UsageRow extends Amounts {
  day: number;
  keyId: string;
  keyName: string;
  model: string;
}

/** Tokens are billed ones: `input` counts those that were cached, too. `cost` is in millionths of the currency. */
export interface Amounts {
  requests: number;
  input: number;
  cached: number;
  output: number;
  cost: number;
}

export type Group = "key" | "model" | "day";
export const GROUPS: readonly Group[] = ["day", "key", "model"];

export interface GroupSum extends Amounts {
  /** The values of the groups, by their names. */
  group: Partial<Record<Group, string>>;
}

/** A bucket of `/v1/organization/usage/completions`, grouped by key and model. */
export interface UsageBucket {
  start_time: number;
  results: { api_key_id: string | null; api_key_name: string | null; model: string | null; num_model_requests: number; input_tokens: number; input_cached_tokens: number; output_tokens: number }[];
}

/** A bucket of `/v1/organization/costs`, grouped by key and line item. */
export interface CostBucket {
  start_time: number;
  results: { api_key_id: string | null; api_key_name: string | null; line_item: string | null; amount: { value: number } }[];
}

/** Joins what the two endpoints say of the same days. */
export function usageRows(usage: readonly UsageBucket[], costs: readonly CostBucket[]): UsageRow[] {
  const rows = new Map<string, UsageRow>();
  const rowOf = (day: number, keyId: string | null, keyName: string | null, model: string | null): UsageRow => {
    const id = JSON.stringify([day, keyId, model]);
    const found = rows.get(id) ?? { day, keyId: keyId ?? "", keyName: keyName ?? "", model: model ?? "", requests: 0, input: 0, cached: 0, output: 0, cost: 0 };
    rows.set(id, found);
    return found;
  };
  for (const { start_time, results } of usage) {
    for (const each of results) {
      const row = rowOf(start_time, each.api_key_id, each.api_key_name, each.model);
      row.requests += each.num_model_requests;
      row.input += each.input_tokens;
      row.cached += each.input_cached_tokens;
      row.output += each.output_tokens;
    }
  }
  for (const { start_time, results } of costs) {
    for (const each of results) {
      const item = each.line_item ?? "";
      const row = rowOf(start_time, each.api_key_id, each.api_key_name, item.slice(0, item.lastIndexOf(", "))); // "MODEL, input"
      row.cost += Math.round(each.amount.value * MICRO);
    }
  }
  return [...rows.values()];
}

export function billed({ input, output }: Pick<Amounts, "input" | "output">): number {
  return input + output;
}

/** Returns a cost in the currency. */
export function money({ cost }: Pick<Amounts, "cost">): number {
  return cost / MICRO;
}

export function sumOf(rows: readonly Amounts[]): Amounts {
  const total: Amounts = { requests: 0, input: 0, cached: 0, output: 0, cost: 0 };
  for (const row of rows) for (const name of ["requests", "input", "cached", "output", "cost"] as const) total[name] += row[name];
  return total;
}

/** Returns the sums of groups: by day, then those with the most tokens first. */
export function grouped(rows: readonly UsageRow[], by: readonly Group[]): GroupSum[] {
  const members = new Map<string, UsageRow[]>();
  for (const row of rows) {
    const id = JSON.stringify(by.map((name) => ({ day: row.day, key: row.keyId, model: row.model })[name]));
    const found = members.get(id);
    if (found) found.push(row);
    else members.set(id, [row]);
  }
  const sums = [...members.values()].map((each) => ({ group: groupOf(each[0] as UsageRow, by), ...sumOf(each) }));
  return sums.sort((one, other) => compare(one.group.day, other.group.day) || billed(other) - billed(one) || compare(one.group.key, other.group.key) || compare(one.group.model, other.group.model));
}

function groupOf(row: UsageRow, by: readonly Group[]): GroupSum["group"] {
  const values = { day: dateOf(row.day), key: row.keyName || row.keyId, model: row.model };
  return Object.fromEntries(by.map((name) => [name, values[name]]));
}

function compare(one = "", other = ""): number {
  return one < other ? -1 : Number(one > other);
}

/** Returns the date of a day, which begins at midnight UTC, as `2026-01-31`. */
export function dateOf(day: number): string {
  return new Date(day * 1000).toISOString().slice(0, 10);
}

/** Returns when a date begins, in Unix seconds; null for what is not a date. */
export function dayOf(date: string): number | null {
  const day = /^\d{4}-\d\d-\d\d$/.test(date) ? Date.parse(`${date}T00:00:00Z`) / 1000 : NaN;
  return Number.isNaN(day) || dateOf(day) !== date ? null : day; // some browsers take February 31 for March 3
}

/** Returns why a range of dates, both included, cannot be asked for; "" where it can. */
export function problemOf(from: string, to: string): string {
  const [start, end] = [dayOf(from), dayOf(to)];
  if (start === null || end === null) return "Choose two dates.";
  if (start < 0) return "The first day must not be before 1970.";
  if (end < start) return "The last day must not be before the first one.";
  if ((end - start) / DAY >= MAX_DAYS) return `Choose at most ${MAX_DAYS.toLocaleString("en")} days.`;
  return "";
}

/** Returns sums with the columns of `onward usage`, which has the same numbers. */
function columns(sums: readonly GroupSum[], by: readonly Group[]): Record<string, Cell>[] {
  return sums.map((sum) => ({
    ...Object.fromEntries(by.map((name) => [name, sum.group[name] ?? ""])),
    requests: sum.requests,
    prompt_tokens: sum.input,
    cached_tokens: sum.cached,
    completion_tokens: sum.output,
    cost: money(sum),
  }));
}

export function usageCsv(sums: readonly GroupSum[], by: readonly Group[]): string {
  const names = [...by, "requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost"];
  return csv([names, ...columns(sums, by).map((row) => names.map((name) => row[name] ?? null))]);
}

export function usageJson(sums: readonly GroupSum[], by: readonly Group[]): string {
  return JSON.stringify(columns(sums, by), null, 2);
}

export interface Bar extends Amounts {
  /** The first and the last day. */
  from: string;
  to: string;
}

/** Returns a bar for each day from `start` to before `end`, or for each 7 or 30 days where those would be too many. */
export function bars(rows: readonly UsageRow[], start: number, end: number): Bar[] {
  const numDays = Math.round((end - start) / DAY);
  const width = DAY * ([1, 7].find((days) => numDays / days <= MAX_BARS) ?? 30);
  const members: UsageRow[][] = Array.from({ length: Math.ceil((end - start) / width) }, () => []);
  for (const row of rows) members[Math.floor((row.day - start) / width)]?.push(row);
  return members.map((each, index) => {
    const from = start + index * width;
    return { from: dateOf(from), to: dateOf(Math.min(from + width, end) - DAY), ...sumOf(each) };
  });
}

/** Returns round numbers from 0 to at least `most`, at most six; whole ones where only those occur. */
export function ticks(most: number, isWhole: boolean): number[] {
  if (most <= 0) return [0];
  const magnitude = 10 ** Math.floor(Math.log10(most / 5));
  const step = magnitude * ([1, 2, 5].find((each) => most / (each * magnitude) <= 5) ?? 10);
  const between = isWhole ? Math.max(1, step) : step;
  return Array.from({ length: Math.ceil(most / between - 1e-9) + 1 }, (_, index) => Number((index * between).toPrecision(12)));
}
