/** Server-sent events from bytes. */
import { EventSourceParserStream } from "eventsource-parser/stream";

export interface ServerEvent {
  /** The last `id:` field so far; empty before the first. */
  id: string;
  data: string;
}

/** Yields each event of a body as soon as its blank line has arrived; cancels the body when it is left. */
export async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).pipeThrough(new EventSourceParserStream()).getReader();
  let id = "";
  try {
    for (let next = await reader.read(); !next.done; next = await reader.read()) {
      id = next.value.id ?? id;
      yield { id, data: next.value.data };
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}
