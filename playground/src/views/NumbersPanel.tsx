/** The figures of the last run and of the text, and their exports. */
import { meter } from "../state/actions";
import { exportNumbers, type NumbersKind } from "../state/numbers";
import { scored } from "../state/scoring";
import { threeDigits } from "./format";

const KINDS: [NumbersKind, string][] = [
  ["csv", "CSV"],
  ["json", "JSON"],
  ["svg", "SVG"],
  ["png", "PNG"],
];
const GRAPH = { width: 280, height: 70 };
const BUCKETS = 40;

export function NumbersPanel() {
  return (
    <div class="numbers">
      <h2>Probabilities</h2>
      {scored.value ? (
        <p>
          <b>{scored.value.bitsPerByte.toFixed(3)}</b> bits per byte, perplexity <b>{threeDigits(scored.value.perplexity)}</b>, {scored.value.numTokens} tokens, {scored.value.numBytes} bytes
        </p>
      ) : (
        <p class="hint">Generated tokens have their probabilities. Score, in the menu, adds those of all others, and the bits per byte.</p>
      )}
      <div class="toolbar">
        {KINDS.map(([kind, label]) => (
          <button key={kind} type="button" onClick={() => void exportNumbers(kind)}>
            {label}
          </button>
        ))}
      </div>
      <p class="hint">Tokens as a table or JSON; the coloured text as a picture.</p>
      <h2>Speed of the last run</h2>
      <Speed />
    </div>
  );
}

/** Tokens per second over the time of the run. */
function Speed() {
  const arrivals = meter.value?.arrivals ?? [];
  const last = arrivals.at(-1)?.[0] ?? 0;
  if (arrivals.length < 3 || last === 0) return <p class="hint">Nothing has been generated yet.</p>;
  const buckets = new Array<number>(BUCKETS).fill(0);
  for (const [ms, count] of arrivals) {
    const index = Math.min(BUCKETS - 1, Math.floor((ms / last) * BUCKETS));
    buckets[index] = (buckets[index] ?? 0) + (count * 1000 * BUCKETS) / last;
  }
  const most = Math.max(...buckets);
  return (
    <figure>
      <svg width="100%" viewBox={`0 0 ${GRAPH.width} ${GRAPH.height}`} role="img" aria-label={`At most ${most.toFixed(0)} tokens per second, over ${(last / 1000).toFixed(1)} seconds`}>
        {buckets.map((rate, index) => {
          const height = (rate / most) * GRAPH.height;
          return <rect key={index} class="bar-of-speed" x={(index * GRAPH.width) / BUCKETS} y={GRAPH.height - height} width={GRAPH.width / BUCKETS - 1} height={height} />;
        })}
      </svg>
      <figcaption class="hint">
        {(last / 1000).toFixed(1)} s; the first token after {meter.value?.firstTokenMs?.toFixed(0)} ms
        {meter.value?.tokensPerSecond ? `, then ${meter.value.tokensPerSecond.toFixed(0)} tokens per second` : ""}; the highest bar is {most.toFixed(0)}
      </figcaption>
    </figure>
  );
}
