/** Two settings or models on one prompt; the first token that differs is marked, with both distributions. */
import { batch } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { firstDifference } from "../core/difference";
import type { Settings } from "../core/settings";
import { percent } from "../core/surprise";
import { visible, type Token } from "../core/tokens";
import { model, served } from "../state/access";
import { changeSide, compare, comparisonSeed, isComparing, openComparison, scopeOf, sides, stopComparing, type Side } from "../state/comparison";
import { text } from "../state/document";
import { isScoringTexts, scoreTexts, texts, textScores } from "../state/numbers";
import { problem } from "../state/page";
import { threeDigits } from "./format";
import { ModelSelect } from "./ModelSelect";
import { SettingsControls } from "./SettingsPanel";

/** Of the value of a setting in which the sides differ, so many characters are shown before the settings are opened. */
const SHOWN_CHARS = 40;

export function CompareView() {
  useEffect(openComparison, []);
  const both = sides.value;
  if (!both) return null;
  const [one, other] = both.map((side) => side.choice?.tokens ?? []) as [Token[], Token[]];
  const difference = firstDifference(one, other);
  return (
    <section class="compare" aria-label="Compare">
      <blockquote aria-label="Prompt">{text.value || "The prompt is empty: the model begins a new document."}</blockquote>
      <div class="toolbar">
        {isComparing.value ? (
          <button type="button" class="primary" onClick={stopComparing}>
            Stop
          </button>
        ) : (
          <button type="button" class="primary" disabled={model.value === ""} onClick={() => void compare()}>
            Compare
          </button>
        )}
        {both[0].choice && comparisonSeed.value !== null && <span class="hint">seed {comparisonSeed.value}</span>}
        {!isComparing.value && both.every((side) => side.choice) && (
          <span class="hint" role="status">
            {verdict(difference, one.length, other.length)}
          </span>
        )}
      </div>
      {problem.value && (
        <p class="problem" role="alert">
          {problem.value.message}
        </p>
      )}
      <div class="sides">
        {([0, 1] as const).map((index) => (
          <SideView key={index} index={index} side={both[index]} other={both[index === 0 ? 1 : 0].settings} difference={difference} />
        ))}
      </div>
      <TwoTexts />
    </section>
  );
}

/** Which of two texts the model finds more surprising, in figures that do not depend on their length. */
function TwoTexts() {
  const scores = textScores.value;
  const set = (index: 0 | 1, written: string) => {
    const next: [string, string] = [...texts.value];
    next[index] = written;
    batch(() => {
      texts.value = next;
      textScores.value = null;
    });
  };
  const [one, other] = scores ?? [];
  return (
    <section class="two-texts" aria-labelledby="two-texts">
      <h2 id="two-texts">Two texts</h2>
      <div class="sides">
        {([0, 1] as const).map((index) => (
          <article key={index}>
            <label>
              {index === 0 ? "First text" : "Second text"}
              <textarea rows={5} value={texts.value[index]} onInput={(event) => set(index, event.currentTarget.value)} />
            </label>
            {scores && <p>{scores[index] ? `${scores[index].bitsPerByte.toFixed(3)} bits per byte, perplexity ${threeDigits(scores[index].perplexity)}, ${scores[index].numTokens} tokens` : "Nothing to score."}</p>}
          </article>
        ))}
      </div>
      <div class="toolbar">
        <button type="button" disabled={isScoringTexts.value || model.value === "" || texts.value.some((each) => each === "")} onClick={() => void scoreTexts()}>
          Compare their surprise
        </button>
        {one && other && (
          <span role="status">
            The {one.bitsPerByte < other.bitsPerByte ? "first" : "second"} is less surprising, by {Math.abs(one.bitsPerByte - other.bitsPerByte).toFixed(3)} bits per byte.
          </span>
        )}
      </div>
    </section>
  );
}

function verdict(difference: number | null, one: number, other: number): string {
  if (difference !== null) return `They differ from token ${difference + 1} on.`;
  if (one === other) return "No token differs.";
  return `No token differs, but the ${one < other ? "left" : "right"} one ends after ${Math.min(one, other)}.`;
}

interface SideProps {
  index: 0 | 1;
  side: Side;
  /** The settings of the other side. */
  other: Settings;
  difference: number | null;
}

function SideView({ index, side, other, difference }: SideProps) {
  const name = index === 0 ? "Left" : "Right";
  const tokens = side.choice?.tokens ?? [];
  const marked = difference === null ? undefined : tokens[difference];
  return (
    <article aria-label={name}>
      <label>
        {name}{" "}
        <ModelSelect selected={served(side.model)} onSelect={(chosen) => changeSide(index, { model: chosen })} />
      </label>
      <p class="result">
        {side.choice?.text ? <Marked text={side.choice.text} token={marked} /> : <span class="hint">{side.choice ? "The model ended at once." : "Nothing yet."}</span>}
      </p>
      {marked && <Distribution token={marked} />}
      {side.meter && (
        <p class="hint">
          {side.meter.completionTokens} tokens{side.meter.firstTokenMs !== null && `, the first after ${side.meter.firstTokenMs.toFixed(0)} ms`}
        </p>
      )}
      <details>
        <summary>
          Settings <span class="hint">{differing(side.settings, other) || "as on the other side"}</span>
        </summary>
        <SettingsControls values={side.settings} onChange={(settings) => changeSide(index, { settings })} search="" scope={scopeOf(index)} />
      </details>
    </article>
  );
}

/** Returns the settings in which one side differs from the other, with its values: of long ones, the beginning. */
function differing(own: Settings, other: Settings): string {
  const names = Object.keys({ ...own, ...other }).filter((name) => JSON.stringify(own[name]) !== JSON.stringify(other[name]));
  return names.map((name) => `${name}: ${start(own[name] === undefined ? "default" : JSON.stringify(own[name]))}`).join(", ");
}

function start(value: string): string {
  return value.length > SHOWN_CHARS ? `${value.slice(0, SHOWN_CHARS)}…` : value;
}

function Marked({ text, token }: { text: string; token: Token | undefined }) {
  if (!token) return <>{text}</>;
  return (
    <>
      {text.slice(0, token.from)}
      <mark>{text.slice(token.from, token.to)}</mark>
      {text.slice(token.to)}
    </>
  );
}

function Distribution({ token }: { token: Token }) {
  return (
    <table>
      <caption>Where they diverge</caption>
      <tbody>
        {token.alternatives.map(({ text, logprob }) => (
          <tr key={text} class={text === token.text ? "chosen" : ""}>
            <th scope="row">
              <code>{visible(text)}</code>
            </th>
            <td>{percent(logprob)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
