import { afterEach, describe, expect, it, vi } from "vitest";
import { ApiError, streamCompletion } from "../src/api/client";
import { readEvents } from "../src/api/events";
import { Stopwatch, savedMs } from "../src/core/meter";

describe("readEvents", () => {
  it("keeps the last id, and yields each event as soon as it is whole", async () => {
    const found = [];
    const { body: bytes } = body(": comment\nid: 1\nda", "ta: {\ndata: }\n\n", "data: x\r\n\r\nid: 3\ndata: é\n\ndata: cut");
    for await (const event of readEvents(bytes as ReadableStream<Uint8Array>)) found.push(event);
    expect(found).toEqual([{ id: "1", data: "{\n}" }, { id: "1", data: "x" }, { id: "3", data: "é" }]);
  });
});

function body(...parts: (string | Error)[]): Response {
  let index = 0;
  const stream = new ReadableStream<Uint8Array>({
    pull(controller) {
      const part = parts[index++];
      if (part === undefined) controller.close();
      else if (part instanceof Error) controller.error(part);
      else controller.enqueue(new TextEncoder().encode(part));
    },
  });
  return new Response(stream);
}

const chunk = (id: number, text: string) => `id: ${id}\ndata: {"id":"cmpl-1","choices":[{"text":"${text}"}]}\n\n`;

async function texts(answers: (Response | Error)[], abort = new AbortController()) {
  const calls: [string, RequestInit][] = [];
  vi.stubGlobal("fetch", async (url: URL, init: RequestInit) => {
    calls.push([url.pathname.replace(/.*\/v1\//, "v1/"), init]);
    const answer = answers.shift();
    if (answer instanceof Error) throw answer;
    return answer ?? new Response("{}");
  });
  const found: string[] = [];
  const states: boolean[] = [];
  const run = async () => {
    for await (const each of streamCompletion({}, { key: "sk", signal: abort.signal, onReconnect: (lost) => states.push(lost) })) {
      found.push(each.choices[0]?.text ?? "");
    }
  };
  const error = await run().catch((reason: unknown) => reason);
  return { found, calls, states, error };
}

afterEach(() => vi.unstubAllGlobals());

describe("streamCompletion", () => {
  it("yields chunks up to the end", async () => {
    const { found, calls, error } = await texts([body(chunk(1, "a"), chunk(2, "b"), "data: [DONE]\n\n")]);
    expect([found, calls.length, error]).toEqual([["a", "b"], 1, undefined]);
    expect(new Headers(calls[0]?.[1].headers).get("authorization")).toBe("Bearer sk");
  });

  it("goes on after a lost connection, from the last event on", async () => {
    const { found, calls, states } = await texts([
      body(chunk(1, "a"), new TypeError("network error")),
      new TypeError("refused"),
      body(chunk(2, "b"), "data: [DONE]\n\n"),
    ]);
    expect(found).toEqual(["a", "b"]);
    expect(calls.map(([path]) => path)).toEqual(["v1/completions", "v1/completions/cmpl-1", "v1/completions/cmpl-1"]);
    expect(new Headers(calls[2]?.[1].headers).get("last-event-id")).toBe("1");
    expect(states).toEqual([true, true, false]);
  });

  it("ends the work on the server when it is stopped", async () => {
    const abort = new AbortController();
    abort.signal.addEventListener("abort", () => undefined);
    const aborted = new DOMException("stopped", "AbortError");
    const { found, calls, error } = await texts([body(chunk(1, "a"), aborted)], abort);
    expect([found, error]).toEqual([["a"], aborted]);
    expect(calls.at(-1)?.[1].method).toBe("DELETE");
  });

  it("throws the server's own words", async () => {
    const refused = new Response('{"error":{"message":"No such model.","param":"model"}}', { status: 404 });
    const { error } = await texts([refused]);
    expect(error).toBeInstanceOf(ApiError);
    expect([(error as ApiError).message, (error as ApiError).param, (error as ApiError).status]).toEqual(["No such model.", "model", 404]);
  });

  it("throws an error that arrives in the stream, and does not ask again", async () => {
    const { found, calls, error } = await texts([body(chunk(1, "a"), 'data: {"error":{"message":"Crashed.","param":null}}\n\n')]);
    expect([found, calls.length, (error as ApiError).message]).toEqual([["a"], 1, "Crashed."]);
  });

  it("says so where the server cannot be reached", async () => {
    const { error } = await texts([new TypeError("fetch failed")]);
    expect((error as Error).message).toContain("cannot be reached");
  });
});

describe("Stopwatch", () => {
  it("measures the first token and those after it", () => {
    let now = 0;
    const stopwatch = new Stopwatch(() => now);
    now = 50;
    stopwatch.count(1);
    now = 150;
    stopwatch.count(10);
    const meter = stopwatch.meter(null);
    expect([meter.firstTokenMs, meter.tokensPerSecond, meter.completionTokens]).toEqual([50, 100, 11]);
    expect(savedMs({ ...meter, acceptedTokens: 0 })).toBe(null);
    expect(savedMs({ ...meter, completionTokens: 10, acceptedTokens: 5 })).toBe(100);
  });
});
