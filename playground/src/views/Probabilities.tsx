/** How much of the model's probabilities is shown, and what the colours mean. */
import { PROBABILITY_STEPS, SURPRISE_STEPS_BITS } from "../core/surprise";
import { shading } from "../state/page";
import type { Shading } from "../editor/tokens";
import { Menu } from "./Menu";

const CHOICES: [Shading, string][] = [
  ["plain", "Plain"],
  ["probability", "Probability"],
  ["surprise", "Surprise"],
];

export function Probabilities() {
  return (
    <Menu label="Probabilities" face={<span class={`swatch ${shading.value}`}>%</span>} class="icon">
      <fieldset class="segments">
        <legend class="visually-hidden">Colour tokens by</legend>
        {CHOICES.map(([name, label]) => (
          <label key={name}>
            <input type="radio" name="shading" checked={shading.value === name} onChange={() => (shading.value = name)} />
            {label}
          </label>
        ))}
      </fieldset>
      <p class="hint">Tap a token, or press Ctrl Space, to see the alternatives. Hold it to ban it.</p>
    </Menu>
  );
}

/** A strip above the toolbar while colours are shown. */
export function Legend() {
  if (shading.value === "plain") return null;
  return (
    <ul class="legend" aria-label="Legend">
      {labels(shading.value).map((label, index) => (
        <li key={label}>
          <span class={`${shading.value === "probability" ? "p" : "s"}${index}`}>{label}</span>
        </li>
      ))}
    </ul>
  );
}

function labels(kind: Shading): string[] {
  if (kind === "probability") {
    const shares = PROBABILITY_STEPS.map((step) => `${step * 100}%`);
    return [...shares.map((share) => `≥ ${share}`), `< ${shares.at(-1)}`];
  }
  return [...SURPRISE_STEPS_BITS.map((step) => `< ${step}`), `≥ ${SURPRISE_STEPS_BITS.at(-1)} bits`];
}
