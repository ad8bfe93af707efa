/** What else the model might have said here, with its probability. Choosing one goes on from there. */
import { useLayoutEffect, useRef } from "preact/hooks";
import { percent } from "../core/surprise";
import { isText, visible } from "../core/tokens";
import { isSpecial } from "../state/access";
import { close, leavePointer, opened, stay, step } from "../state/alternatives";
import { branch } from "../state/actions";
import { BAN, bias, FAVOUR } from "../state/biases";

const GAP_PX = 4;

export function Alternatives() {
  const box = useRef<HTMLDivElement>(null);
  const now = opened.value;
  useLayoutEffect(() => {
    const element = box.current;
    if (!element || !now) return;
    const { width, height } = element.getBoundingClientRect();
    const isBelow = now.bottom + GAP_PX + height < (visualViewport?.height ?? innerHeight);
    element.style.left = `${Math.max(8, Math.min(now.left, document.documentElement.clientWidth - width - 8))}px`;
    element.style.top = `${isBelow ? now.bottom + GAP_PX : Math.max(8, now.top - height - GAP_PX)}px`;
  }, [now]);
  useLayoutEffect(() => {
    if (now?.isFocused) box.current?.querySelector<HTMLElement>(".choice:not(:disabled), .weights button:not(:disabled)")?.focus();
  }, [now]);
  if (!now) return null;
  const { token } = now;
  return (
    <div
      ref={box}
      class="alternatives"
      role="dialog"
      aria-label={`Alternatives to ${visible(token.text)}`}
      onPointerEnter={stay}
      onPointerLeave={leavePointer}
      onKeyDown={onKeyDown}
    >
      <p>
        <code>{visible(token.text)}</code> <b>{percent(token.logprob ?? 0)}</b>
        {token.ids.length > 0 && <span class="ids"> id {token.ids.join(", ")}</span>}
      </p>
      {now.isStale && <p class="hint">The text before this token has been edited: these are the old probabilities.</p>}
      <ul>
        {token.alternatives.map(({ text, logprob }) => (
          <li key={text}>
            <button type="button" class="choice" disabled={!isText(text) || isSpecial(text)} onClick={() => choose(token.from, text)}>
              <code>{visible(text)}</code>
              <meter min={0} max={1} value={Math.exp(logprob)} aria-hidden="true" />
              <span>{percent(logprob)}</span>
            </button>
            <button type="button" class="icon ban" aria-label={`Ban ${visible(text)}`} title="Ban this token" disabled={!isText(text)} onClick={() => weigh(text, BAN)}>
              ⊘
            </button>
          </li>
        ))}
      </ul>
      <div class={`weights ${now.isHeld ? "held" : ""}`}>
        <button type="button" disabled={!isText(token.text)} onClick={() => weigh(token.text, BAN, token.ids)}>
          Ban
        </button>
        <button type="button" disabled={!isText(token.text)} onClick={() => weigh(token.text, FAVOUR, token.ids)}>
          Favour
        </button>
      </div>
    </div>
  );
}

function weigh(text: string, value: number, ids?: readonly number[]): void {
  close();
  void bias(text, value, ids);
}

function choose(from: number, text: string): void {
  close();
  void branch(from, text);
}

function onKeyDown(event: KeyboardEvent): void {
  const buttons = [...(event.currentTarget as HTMLElement).querySelectorAll<HTMLButtonElement>(".choice:not(:disabled), .weights button:not(:disabled)")];
  const index = buttons.indexOf(document.activeElement as HTMLButtonElement);
  const act = {
    Escape: close,
    ArrowDown: () => buttons[(index + 1) % buttons.length]?.focus(),
    ArrowUp: () => buttons[(index + buttons.length - 1) % buttons.length]?.focus(),
    ArrowLeft: () => step(-1),
    ArrowRight: () => step(1),
  }[event.key];
  if (!act) return;
  event.preventDefault();
  event.stopPropagation();
  act();
}
