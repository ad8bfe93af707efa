/** The document, and the toolbar below it, which never moves. */
import { canRun, isReconnecting, isRunning } from "../state/actions";
import { isSheetOpen, notice, panel, problem } from "../state/page";
import { scored } from "../state/scoring";
import { controlId, parameters } from "../state/settings";
import { reproduce, shared } from "../state/sharing";
import { Alternatives } from "./Alternatives";
import { DocumentEditor } from "./DocumentEditor";
import { threeDigits } from "./format";
import { MeterLine } from "./MeterLine";
import { Legend } from "./Probabilities";
import { Toolbar } from "./Toolbar";

export function WriteView() {
  return (
    <section class="document" aria-label="Document">
      <DocumentEditor />
      <Alternatives />
      <div class="foot">
        <Messages />
        <Legend />
        {scored.value && (
          <p class="score">
            <b>{scored.value.bitsPerByte.toFixed(3)}</b> bits per byte · perplexity <b>{threeDigits(scored.value.perplexity)}</b> ·{" "}
            {scored.value.numTokens} tokens scored
          </p>
        )}
        <MeterLine />
        <Toolbar />
      </div>
    </section>
  );
}

/** They float over the end of the document: nothing moves when one comes or goes. */
function Messages() {
  return (
    <div class="messages">
      {shared.value && (
        <div class="notice">
          <p>
            A shared prompt for <b>{shared.value.model}</b>, with its settings{shared.value.seed === null ? "" : ` and seed ${shared.value.seed}`}.
          </p>
          <button type="button" class="primary" disabled={!canRun.value} onClick={() => void reproduce()}>
            Reproduce
          </button>
        </div>
      )}
      {notice.value && <NoticeLine />}
      {isRunning.value && isReconnecting.value && (
        <div class="notice">
          <p>The connection was lost. Reconnecting…</p>
        </div>
      )}
      {problem.value && <ProblemLine />}
    </div>
  );
}

function ProblemLine() {
  const now = problem.value;
  if (!now) return null;
  const wrong = parameters.find(({ name }) => name === now.param);
  return (
    <div class="problem" role="alert">
      <p>{now.message}</p>
      {wrong && (
        <button type="button" onClick={() => showSetting(wrong.name)}>
          Show the setting
        </button>
      )}
      <button type="button" class="icon" aria-label="Dismiss" onClick={() => (problem.value = null)}>
        ×
      </button>
    </div>
  );
}

/** Opens the panel of settings, which on small screens is a sheet, at one of them. */
function showSetting(name: string): void {
  panel.value = "settings";
  isSheetOpen.value = true;
  requestAnimationFrame(() => document.getElementById(controlId("write", name))?.focus());
}

function NoticeLine() {
  const now = notice.value;
  if (!now) return null;
  const { message, action } = now;
  const act = () => {
    notice.value = null;
    action?.act();
  };
  return (
    <div class="notice">
      <p>{message}</p>
      {action && (
        <button type="button" onClick={act}>
          {action.label}
        </button>
      )}
      <button type="button" class="icon" aria-label="Dismiss the notice" onClick={() => (notice.value = null)}>
        ×
      </button>
    </div>
  );
}
