/** Where a generation ends earlier than its tokens: after a sentence, or a paragraph. */

export type Until = "" | "sentence" | "paragraph";

/** Its closing quotes belong to a sentence; it ends only where something follows, so that "3." may become "3.5". */
const SENTENCE = /[\p{L}\p{N}][^.!?…。！？]*[.!?…。！？]+["'”’»)\]]*(?=[\s"“«(]|[。！？])/u;
const PARAGRAPH = /\S[^\n]*(?=\n)/;

/** Returns how much of a generated text to keep; null while it may go on. */
export function endOf(text: string, until: Until): number | null {
  if (until === "") return null;
  const found = (until === "sentence" ? SENTENCE : PARAGRAPH).exec(text);
  return found && found.index + found[0].length;
}
