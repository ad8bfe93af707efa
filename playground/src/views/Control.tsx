/** One setting: a label with its help, the fitting input, and a way back to the default. */
import { useEffect, useState } from "preact/hooks";
import { parseValue, showValue, sliderStep, WrongValue, type Parameter } from "../core/settings";
import { problem } from "../state/page";
import { controlId, mistakes, setMistake } from "../state/settings";

interface Props {
  parameter: Parameter;
  value: unknown;
  scope: string;
  onChange: (value: unknown) => void;
}

export function Control({ parameter, value, scope, onChange }: Props) {
  const [typed, setTyped] = useState(showValue(parameter, value));
  const { name, help } = parameter;
  const id = controlId(scope, name);
  const mistake = mistakes.value[id];
  useEffect(() => {
    setTyped((now) => (sameValue(parameter, now, value) ? now : showValue(parameter, value)));
  }, [value]);
  const change = (next: unknown) => {
    setMistake(id, null);
    if (problem.value?.param === name) problem.value = null;
    onChange(next);
  };
  const take = (text: string) => {
    try {
      const next = parseValue(parameter, text);
      setTyped(text);
      change(next);
    } catch (error) {
      if (!(error instanceof WrongValue)) throw error;
      setMistake(id, { typed: text, message: error.message });
    }
  };
  const isRefused = problem.value?.param === name;
  return (
    <div class={`control ${value === undefined && !mistake ? "" : "changed"}`}>
      <div class="control-head">
        <label for={id}>{name}</label>
        {(value !== undefined || mistake) && (
          <button type="button" class="reset" aria-label={`Reset ${name}`} title="Back to the default" onClick={() => change(undefined)}>
            ↺
          </button>
        )}
      </div>
      <Input id={id} parameter={parameter} typed={mistake?.typed ?? typed} isWrong={mistake !== undefined || isRefused} onType={take} />
      {mistake && (
        <p class="wrong" id={`${id}-wrong`} role="alert">
          {mistake.message}
        </p>
      )}
      <p class="hint" id={`${id}-help`}>
        {help.split("`").map((part, index) => (index % 2 === 1 ? <code key={index}>{part}</code> : part))}
      </p>
    </div>
  );
}

interface InputProps {
  id: string;
  parameter: Parameter;
  typed: string;
  isWrong: boolean;
  onType: (text: string) => void;
}

function Input({ id, parameter, typed, isWrong, onType }: InputProps) {
  const { kind, default: fallback, minimum, maximum } = parameter;
  const common = {
    id,
    "aria-invalid": isWrong,
    "aria-describedby": `${id}-help`,
    placeholder: fallback === undefined ? "not set" : String(fallback),
    onInput: (event: Event) => onType((event.currentTarget as HTMLInputElement).value),
  };
  if (kind === "boolean") {
    return (
      <select {...common} value={typed}>
        <option value="">default: {String(fallback ?? false)}</option>
        <option value="true">true</option>
        <option value="false">false</option>
      </select>
    );
  }
  const step = sliderStep(parameter);
  if (kind === "number" || kind === "integer") {
    return (
      <div class="number">
        <input type="text" inputMode="decimal" {...common} value={typed} />
        {step !== undefined && (
          <input
            type="range"
            aria-label={`${parameter.name} slider`}
            min={minimum}
            max={maximum}
            step={step}
            value={typed === "" ? Number(fallback ?? minimum) : Number(typed)}
            onInput={common.onInput}
          />
        )}
      </div>
    );
  }
  if (kind === "string") return <textarea rows={1} {...common} value={typed} />; // a grammar has several lines
  if (kind === "token_ids") return <input type="text" {...common} value={typed} />;
  return <textarea rows={2} {...common} placeholder={`such as ${showValue(parameter, parameter.example)}`} value={typed} />;
}

/** Whether what is typed already means this value: "0.50" stays as it is typed. What a link or another version has set may be none. */
function sameValue(parameter: Parameter, typed: string, value: unknown): boolean {
  try {
    const parsed = parseValue(parameter, typed);
    const isDefault = value === undefined && JSON.stringify(parsed) === JSON.stringify(parameter.default);
    return isDefault || JSON.stringify(parsed) === JSON.stringify(value);
  } catch {
    return false;
  }
}
