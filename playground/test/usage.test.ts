import { describe, expect, it } from "vitest";
import { bars, billed, DAY, dateOf, dayOf, grouped, MAX_DAYS, problemOf, sumOf, ticks, usageCsv, usageJson, usageRows, type CostBucket, type UsageBucket, type UsageRow } from "../src/core/usage";

const MIDNIGHT = 20_000 * DAY;

const used = (key: string, model: string, requests: number, input: number, cached: number, output: number): UsageBucket["results"][number] => ({
  api_key_id: key && `id_${key}`, api_key_name: key || null, model, num_model_requests: requests, input_tokens: input, input_cached_tokens: cached, output_tokens: output,
});
const paid = (key: string, item: string, value: number): CostBucket["results"][number] => ({ api_key_id: `id_${key}`, api_key_name: key, line_item: item, amount: { value } });

const ROWS = usageRows(
  [
    { start_time: MIDNIGHT, results: [used("b", "m, large", 2, 30, 10, 5), used("a", "m, large", 1, 3, 0, 1)] },
    { start_time: MIDNIGHT + DAY, results: [] },
    { start_time: MIDNIGHT + 2 * DAY, results: [used("a", "tiny", 4, 40, 40, 4)] },
  ],
  [
    { start_time: MIDNIGHT, results: [paid("b", "m, large, input", 0.1), paid("b", "m, large, output", 0.2)] },
    { start_time: MIDNIGHT + DAY, results: [paid("a", "tiny, input", 0.000001)] },
  ],
);

const row = (day: number, amounts: Partial<UsageRow>): UsageRow => ({ day, keyId: "", keyName: "", model: "m", requests: 0, input: 0, cached: 0, output: 0, cost: 0, ...amounts });

describe("usageRows", () => {
  it("joins usage and costs by day, key and model, whatever a model is called", () => {
    expect(ROWS).toHaveLength(4);
    expect(ROWS[0]).toEqual({ day: MIDNIGHT, keyId: "id_b", keyName: "b", model: "m, large", requests: 2, input: 30, cached: 10, output: 5, cost: 300_000 });
    expect(ROWS[3]).toMatchObject({ day: MIDNIGHT + DAY, model: "tiny", requests: 0, cost: 1 });
  });

  it("adds costs exactly", () => {
    const many = usageRows([], Array.from({ length: 1000 }, (_, day) => ({ start_time: day * DAY, results: [paid("a", "m, input", 0.1)] })));
    expect(sumOf(many).cost).toBe(100_000_000);
  });
});

describe("grouped", () => {
  it("sums, those with the most tokens first", () => {
    expect(grouped(ROWS, ["key"]).map(({ group, requests, ...rest }) => [group.key, requests, billed(rest)])).toEqual([["a", 5, 48], ["b", 2, 35]]);
    expect(grouped(ROWS, ["model"]).map(({ group }) => group.model)).toEqual(["tiny", "m, large"]);
  });

  it("is by time where days are a group", () => {
    expect(grouped(ROWS, ["day", "key"]).map(({ group }) => [group.day, group.key])).toEqual([
      [dateOf(MIDNIGHT), "b"], [dateOf(MIDNIGHT), "a"], [dateOf(MIDNIGHT + DAY), "a"], [dateOf(MIDNIGHT + 2 * DAY), "a"],
    ]);
  });

  it.each([[[]], [["key"]], [["model", "day"]], [["day", "key", "model"]]] as const)("loses nothing by %s", (by) => {
    expect(sumOf(grouped(ROWS, by))).toEqual(sumOf(ROWS));
  });

  it("keeps keys apart that have the same name", () => {
    expect(grouped([row(0, { keyId: "1", keyName: "x" }), row(0, { keyId: "2", keyName: "x" })], ["key"])).toHaveLength(2);
  });
});

describe("exports", () => {
  const sums = grouped([row(0, { keyId: "k", keyName: '=1+1,"', input: 5, cost: -2 })], ["key", "model"]);

  it("guard text that would be a formula, and no number", () => {
    expect(usageCsv(sums, ["key", "model"])).toBe('key,model,requests,prompt_tokens,cached_tokens,completion_tokens,cost\r\n"\'=1+1,""",m,0,5,0,0,-0.000002\r\n');
  });

  it("are exact as JSON", () => {
    expect(JSON.parse(usageJson(sums, ["key", "model"]))).toEqual([{ key: '=1+1,"', model: "m", requests: 0, prompt_tokens: 5, cached_tokens: 0, completion_tokens: 0, cost: -0.000002 }]);
  });
});

describe("bars", () => {
  it.each([1, 30, 62, 63, 365, MAX_DAYS])("cover %i days with few bars, each day once", (numDays) => {
    const rows = Array.from({ length: numDays }, (_, day) => row(MIDNIGHT + day * DAY, { requests: 1 }));
    const drawn = bars(rows, MIDNIGHT, MIDNIGHT + numDays * DAY);
    expect(drawn.length).toBeLessThanOrEqual(62);
    expect(sumOf(drawn).requests).toBe(numDays);
    expect(drawn[0]?.from).toBe(dateOf(MIDNIGHT));
    expect(drawn.at(-1)?.to).toBe(dateOf(MIDNIGHT + (numDays - 1) * DAY));
    drawn.slice(1).forEach((bar, index) => expect(dayOf(bar.from)).toBe((dayOf(drawn[index]?.to ?? "") ?? 0) + DAY));
  });
});

describe("ticks", () => {
  it.each([1, 2, 3, 5, 7, 10, 11, 99, 100, 101, 4_321_987])("are few, round and whole up to %i", (most) => {
    const marks = ticks(most, true);
    expect(marks[0]).toBe(0);
    expect(marks.at(-1)).toBeGreaterThanOrEqual(most);
    expect(marks.length).toBeLessThanOrEqual(6);
    expect(marks.every(Number.isInteger)).toBe(true);
  });
  it("are fractions for costs", () => expect(ticks(0.3, false)).toEqual([0, 0.1, 0.2, 0.3]));
  it("are 0 where there is nothing", () => expect(ticks(0, true)).toEqual([0]));
});

describe("problemOf", () => {
  it.each([
    ["2026-01-31", "2026-01-31", ""],
    ["2026-02-01", "2026-01-31", "The last day must not be before the first one."],
    ["", "2026-01-31", "Choose two dates."],
    ["2026-02-31", "2026-03-31", "Choose two dates."],
    ["1969-12-31", "1970-01-01", "The first day must not be before 1970."],
    ["2020-01-01", "2026-01-01", "Choose at most 1,100 days."],
  ])("says what is wrong with %s to %s", (from, to, problem) => expect(problemOf(from, to)).toBe(problem));
});
