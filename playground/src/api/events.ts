/** Server-sent events from bytes: incremental, tolerant of any cut, as the HTML standard parses them. */

export interface ServerEvent {
  /** The last `id:` field so far; empty before the first. */
  id: string;
  data: string;
}

/** Yields each event of a body as soon as its blank line has arrived. */
export async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

export class EventParser {
  private rest = "";
  private id = "";
  private data: string[] = [];
  private endedInReturn = false;

  /** Returns the events that this text completes. */
  push(text: string): ServerEvent[] {
    if (this.endedInReturn && text.startsWith("\n")) text = text.slice(1);
    if (text) this.endedInReturn = text.endsWith("\r");
    const lines = (this.rest + text).split(/\r\n|\n|\r/);
    this.rest = lines.pop() ?? "";
    return lines.flatMap((line) => this.line(line));
  }

  private line(line: string): ServerEvent[] {
    if (line === "") {
      const event = { id: this.id, data: this.data.join("\n") };
      const isEmpty = this.data.length === 0;
      this.data = [];
      return isEmpty ? [] : [event];
    }
    const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line) ?? [];
    if (field === "data") this.data.push(value ?? "");
    if (field === "id") this.id = value ?? "";
    return [];
  }
}
