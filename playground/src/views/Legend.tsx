/** What the colours mean, and how much of them is shown. */
import { PROBABILITY_STEPS, SURPRISE_STEPS_BITS } from "../core/surprise";
import { shading } from "../state/page";
import type { Shading } from "../editor/tokens";

const CHOICES: [Shading, string][] = [
  ["plain", "Plain"],
  ["probability", "Probability"],
  ["surprise", "Surprise"],
];

export function Legend() {
  return (
    <div class="legend">
      <fieldset class="segments">
        <legend class="visually-hidden">Colour tokens by</legend>
        {CHOICES.map(([name, label]) => (
          <label key={name}>
            <input type="radio" name="shading" checked={shading.value === name} onChange={() => (shading.value = name)} />
            {label}
          </label>
        ))}
      </fieldset>
      {shading.value !== "plain" && (
        <ul aria-label="Legend">
          {labels(shading.value).map((label, index) => (
            <li key={label}>
              <span class={`${shading.value === "probability" ? "p" : "s"}${index}`}>{label}</span>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

function labels(kind: Shading): string[] {
  if (kind === "probability") {
    const shares = PROBABILITY_STEPS.map((step) => `${step * 100}%`);
    return [...shares.map((share) => `≥ ${share}`), `< ${shares.at(-1)}`];
  }
  return [...SURPRISE_STEPS_BITS.map((step) => `< ${step}`), `≥ ${SURPRISE_STEPS_BITS.at(-1)} bits`];
}
