/** The document with everything that acts on it. */
import { accept, canRun, isReconnecting, isRunning, proposal, reject, reproduce, scored, shared } from "../state/actions";
import { notice, problem } from "../state/page";
import { threeDigits } from "./format";
import { Alternatives } from "./Alternatives";
import { DocumentEditor } from "./DocumentEditor";
import { Legend } from "./Legend";
import { MeterLine } from "./MeterLine";
import { Toolbar } from "./Toolbar";

export function WriteView() {
  return (
    <section class="document" aria-label="Document">
      {shared.value && (
        <div class="banner">
          <p>
            A shared prompt for <b>{shared.value.model}</b>, with its settings and seed {shared.value.seed}.
          </p>
          <button type="button" class="primary" disabled={!canRun.value} onClick={() => void reproduce()}>
            Reproduce
          </button>
        </div>
      )}
      <DocumentEditor />
      <Alternatives />
      {proposal.value && (
        <div class="banner">
          <p>Keep the text that was filled in?</p>
          <button type="button" class="primary" onClick={accept}>
            Accept <kbd>Enter</kbd>
          </button>
          <button type="button" onClick={reject}>
            Reject <kbd>Esc</kbd>
          </button>
        </div>
      )}
      <Messages />
      <Toolbar />
      <Legend />
      {scored.value && (
        <p class="score">
          <b>{scored.value.bitsPerByte.toFixed(3)}</b> bits per byte · perplexity <b>{threeDigits(scored.value.perplexity)}</b> ·{" "}
          {scored.value.numTokens} tokens scored
        </p>
      )}
      <MeterLine />
    </section>
  );
}

function Messages() {
  return (
    <>
      {problem.value && (
        <div class="problem" role="alert">
          <p>{problem.value.message}</p>
          <button type="button" aria-label="Dismiss" onClick={() => (problem.value = null)}>
            ×
          </button>
        </div>
      )}
      {notice.value && <p class="notice">{notice.value}</p>}
      {isRunning.value && isReconnecting.value && <p class="notice">The connection was lost. Reconnecting…</p>}
    </>
  );
}
