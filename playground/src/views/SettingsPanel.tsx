/** Controls for every parameter of the server's table. */
import { signal } from "@preact/signals";
import { withValue, type Parameter, type Settings } from "../core/settings";
import type { Until } from "../core/until";
import { biases, setBias } from "../state/biases";
import { controlId, isBuiltIn, mistakes, parameters, presets, removePreset, replaceSettings, savePreset, settings, until } from "../state/settings";
import { Control } from "./Control";

const GROUPS: [string, string][] = [
  ["length", "Length"],
  ["sampling", "Sampling"],
  ["constraint", "Constraints"],
  ["choices", "Choices"],
  ["output", "Output"],
  ["prompt", "Prompt"],
  ["stream", "Stream"],
  ["other", "Other"],
];
/** Shown first; the rest of a group is folded. */
const COMMON = new Set(["max_tokens", "stop", "temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty", "n"]);
const search = signal("");

export function SettingsPanel() {
  return (
    <div class="settings">
      <Presets />
      <label class="row">
        Continue until
        <select value={until.value} onChange={(event) => (until.value = event.currentTarget.value as Until)}>
          <option value="">max_tokens or stop</option>
          <option value="sentence">a sentence ends</option>
          <option value="paragraph">a paragraph ends</option>
        </select>
      </label>
      <Biases />
      <label class="search">
        <span class="visually-hidden">Find a setting</span>
        <input type="search" placeholder="Find a setting" value={search.value} onInput={(event) => (search.value = event.currentTarget.value)} />
      </label>
      <SettingsControls
        values={settings.value}
        onChange={(values) => (settings.value = values)}
        search={search.value.trim().toLowerCase()}
        scope="write"
      />
    </div>
  );
}

interface ControlsProps {
  values: Settings;
  onChange: (values: Settings) => void;
  search: string;
  /** Distinguishes the ids of several panels on one page. */
  scope: string;
}

export function SettingsControls({ values, onChange, search, scope }: ControlsProps) {
  const control = (parameter: Parameter) => (
    <Control
      key={parameter.name}
      scope={scope}
      parameter={parameter}
      value={values[parameter.name]}
      onChange={(value) => onChange(withValue(values, parameter, value))}
    />
  );
  if (search) {
    const found = parameters.filter(({ name, help }) => `${name} ${help}`.toLowerCase().includes(search));
    return <>{found.length > 0 ? found.map(control) : <p class="hint">The server has no such setting.</p>}</>;
  }
  const isFirst = ({ name }: Parameter) => COMMON.has(name) || values[name] !== undefined || controlId(scope, name) in mistakes.value;
  return (
    <>
      {parameters.filter(isFirst).map(control)}
      {GROUPS.map(([group, label]) => {
        const rest = parameters.filter((each) => each.group === group && !isFirst(each));
        return (
          rest.length > 0 && (
            <details key={group}>
              <summary>
                {label} <span class="hint">{rest.length} more</span>
              </summary>
              {rest.map(control)}
            </details>
          )
        );
      })}
    </>
  );
}

/** Tokens that were banned or favoured: what the next generation will do differently. */
function Biases() {
  if (biases.value.length === 0) return null;
  return (
    <ul class="biases" aria-label="Biased tokens">
      {biases.value.map(({ id, name, value }) => (
        <li key={id}>
          <code>{name}</code>
          <input
            type="number"
            min={-100}
            max={100}
            aria-label={`Bias of ${name}`}
            value={value}
            onChange={(event) => setBias(id, Math.max(-100, Math.min(100, Number(event.currentTarget.value) || 0)))}
          />
          <button type="button" class="icon" aria-label={`Remove the bias of ${name}`} onClick={() => setBias(id, null)}>
            ×
          </button>
        </li>
      ))}
    </ul>
  );
}

const presetName = signal("");

function Presets() {
  const current = Object.entries(presets.value).find(([, values]) => sameSettings(values, settings.value))?.[0] ?? "";
  return (
    <div class="presets">
      <label>
        <span class="visually-hidden">Preset</span>
        <select value={current} onChange={(event) => replaceSettings(presets.value[event.currentTarget.value] ?? settings.value)}>
          <option value="" disabled>
            Own settings
          </option>
          {Object.keys(presets.value).map((name) => (
            <option key={name} value={name}>
              {name}
            </option>
          ))}
        </select>
      </label>
      {current === "" ? (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            savePreset(presetName.value.trim());
            presetName.value = "";
          }}
        >
          <input aria-label="Name of a new preset" placeholder="Save as…" value={presetName.value} onInput={(event) => (presetName.value = event.currentTarget.value)} />
        </form>
      ) : (
        !isBuiltIn(current) && (
          <button type="button" onClick={() => removePreset(current)}>
            Remove preset
          </button>
        )
      )}
    </div>
  );
}

function sameSettings(one: Settings, other: Settings): boolean {
  const sorted = (values: Settings) => JSON.stringify(Object.entries(values).sort(([a], [b]) => (a < b ? -1 : 1)));
  return sorted(one) === sorted(other);
}
