/** What the last completion cost, and how much context is left. */
import { tokenizer } from "../state/access";
import { done, isRunning, meter } from "../state/actions";

export function MeterLine() {
  const now = meter.value;
  if (!now) return null;
  const context = tokenizer.value?.model_max_length;
  const left = context && now.totalTokens !== null ? context - now.totalTokens : null;
  const facts: [string, string | null][] = [
    ["prompt", now.promptTokens === null ? null : count(now.promptTokens)],
    ["cached", now.cachedTokens === null ? null : count(now.cachedTokens)],
    ["generated", count(now.completionTokens)],
    ["first token", now.firstTokenMs === null ? null : `${now.firstTokenMs.toFixed(0)} ms`],
    ["speed", now.tokensPerSecond === null ? null : `${now.tokensPerSecond.toFixed(0)} tokens/s`],
    ["context left", left === null ? null : count(left)],
    ["seed", done.value?.draft.seed?.toString() ?? null],
  ];
  return (
    <dl class="meter" aria-label="Meter" aria-busy={isRunning.value}>
      {facts.map(([name, value]) => value !== null && <Fact key={name} name={name} value={value} />)}
    </dl>
  );
}

function Fact({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

function count(tokens: number): string {
  return tokens.toLocaleString("en");
}
