/** Requests to the server that sent this page. Streams survive a lost connection. */
import { BASE } from "./base";
import { readEvents } from "./events";
import type { ApplyTemplateResponse, Chunk, DetokenizeResponse, ErrorBody, ModelList, RequestBody, TokenizeResponse, TokenizerInfo } from "./types";

const RETRY_DELAYS_MS = [200, 500, 1000, 2000, 4000, 8000];
/** A server that was restarted knows nothing of its streams. */
const FORGOTTEN = "The server was restarted, or has waited too long for this page: the rest of the text is lost. Continue goes on from here.";

/** An answer that is not a success, in the server's words. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly param: string | null = null,
    readonly retryAfter: string | null = null,
  ) {
    super(message);
  }
}

let onUnknownModel = (): void => undefined;

/** From now on, `act` is called with each answer that says that the server has no model of the name that was sent. */
export function whenModelIsUnknown(act: () => void): void {
  onUnknownModel = act;
}

export class ConnectionLost extends Error {}

export interface StreamOptions {
  key: string;
  signal: AbortSignal;
  /** Called with true when a connection was lost and the stream goes on, with false when it does. */
  onReconnect?: (lost: boolean) => void;
}

export async function fetchJson<T>(path: string, key: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  try {
    const response = await send(path, key, body === undefined ? {} : { method: "POST", body: JSON.stringify(body) }, signal);
    return (await response.json()) as T;
  } catch (error) {
    throw lost(error);
  }
}

export const listModels = (key: string) => fetchJson<ModelList>("v1/models", key);
export const tokenizerInfo = (model: string, key: string) =>
  fetchJson<TokenizerInfo>(`tokenizer_info?model=${encodeURIComponent(model)}`, key);
export const tokenize = (body: RequestBody, key: string, signal?: AbortSignal) =>
  fetchJson<TokenizeResponse>("tokenize", key, body, signal);
export const detokenize = (body: RequestBody, key: string) => fetchJson<DetokenizeResponse>("detokenize", key, body);
export const applyTemplate = (body: RequestBody, key: string, signal: AbortSignal) =>
  fetchJson<ApplyTemplateResponse>("apply-template", key, body, signal);

/**
 * Yields the chunks of a streamed completion. A stream that was requested as resumable goes on after a lost connection,
 * and is ended on the server when `signal` aborts. Throws ApiError, ConnectionLost, or the signal's AbortError.
 */
export async function* streamCompletion(body: RequestBody, options: StreamOptions): AsyncGenerator<Chunk> {
  const stream = { id: "", lastEvent: "", isDone: false };
  let attempt = 0;
  try {
    while (!stream.isDone) {
      try {
        const response = await connect(body, stream, options);
        if (response.status === 204 || !response.body) return;
        if (attempt > 0) options.onReconnect?.(false);
        for await (const chunk of chunks(response.body, stream)) {
          attempt = 0;
          yield chunk;
        }
        if (!stream.isDone) throw new ConnectionLost("The connection to the server was lost.");
      } catch (error) {
        if (stream.lastEvent && error instanceof ApiError && error.status === 404) throw new ConnectionLost(FORGOTTEN);
        const isLost = error instanceof ConnectionLost || error instanceof TypeError;
        const delay = RETRY_DELAYS_MS[attempt];
        if (!isLost || options.signal.aborted || !stream.lastEvent || delay === undefined) throw lost(error);
        attempt += 1;
        options.onReconnect?.(true);
        await pause(delay, options.signal);
      }
    }
  } finally {
    if (!stream.isDone && stream.lastEvent) cancel(stream.id, options.key);
  }
}

interface StreamState {
  id: string;
  lastEvent: string;
  isDone: boolean;
}

function connect(body: RequestBody, stream: StreamState, { key, signal }: StreamOptions): Promise<Response> {
  if (!stream.lastEvent) return send("v1/completions", key, { method: "POST", body: JSON.stringify(body) }, signal);
  const headers = { Accept: "text/event-stream", "Last-Event-ID": stream.lastEvent };
  return send(`v1/completions/${stream.id}`, key, { headers }, signal);
}

async function* chunks(body: ReadableStream<Uint8Array>, stream: StreamState): AsyncGenerator<Chunk> {
  for await (const event of readEvents(body)) {
    if (event.data === "[DONE]") {
      stream.isDone = true;
      return;
    }
    const chunk = JSON.parse(event.data) as Chunk | ErrorBody;
    if ("error" in chunk) {
      stream.isDone = true;
      throw new ApiError(500, chunk.error.message, chunk.error.param);
    }
    stream.id = chunk.id;
    stream.lastEvent = event.id;
    yield chunk;
  }
}

function lost(error: unknown): unknown {
  return error instanceof TypeError ? new ConnectionLost("The server cannot be reached. Is it running?") : error;
}

function cancel(id: string, key: string): void {
  send(`v1/completions/${id}`, key, { method: "DELETE", keepalive: true }).catch(() => undefined);
}

async function send(path: string, key: string, init: RequestInit, signal?: AbortSignal): Promise<Response> {
  const headers = new Headers(init.headers);
  if (init.body) headers.set("Content-Type", "application/json");
  if (key) headers.set("Authorization", `Bearer ${key}`);
  const response = await fetch(new URL(path, BASE), { ...init, headers, ...(signal ? { signal } : {}) });
  if (!response.ok) throw await apiError(response, key);
  return response;
}

async function apiError(response: Response, key: string): Promise<ApiError> {
  const text = await response.text();
  if (response.status === 401 && !key) return new ApiError(401, "This server needs an API key.");
  const retryAfter = response.headers.get("retry-after");
  try {
    const { error } = JSON.parse(text) as ErrorBody;
    if (error.code === "model_not_found") onUnknownModel();
    return new ApiError(response.status, error.message, error.param, retryAfter);
  } catch {
    return new ApiError(response.status, `The server answered with status ${response.status}.`, null, retryAfter);
  }
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
  });
}
