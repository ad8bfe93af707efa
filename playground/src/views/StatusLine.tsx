/** How long the text is, and how much of the context it takes: at rest, the only figures on the page. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { countWords } from "../core/words";
import { tokenizer } from "../state/access";
import { meter } from "../state/actions";
import { text } from "../state/document";

const DELAY_MS = 300;

export function StatusLine() {
  const words = useSignal(0);
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const stop = text.subscribe((now) => {
      clearTimeout(timer);
      timer = setTimeout(() => (words.value = countWords(now)), DELAY_MS);
    });
    return () => (clearTimeout(timer), stop());
  }, []);
  const context = tokenizer.value?.model_max_length;
  const used = meter.value?.totalTokens;
  return (
    <span class="status">
      <span>
        {words.value.toLocaleString("en")} {words.value === 1 ? "word" : "words"}
      </span>
      {context && used ? <span title={`${used} of ${context} tokens`}> · {Math.round((100 * used) / context)}% of the context</span> : null}
    </span>
  );
}
