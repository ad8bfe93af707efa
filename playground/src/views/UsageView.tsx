/** Who used what: dates, a plot by day, a table, and its exports. */
import { signal } from "@preact/signals";
import { billed, money, type Amounts, type Group, type GroupSum } from "../core/usage";
import { adminKey, answer, by, exportUsage, forgetKey, from, hasCosts, isLoading, keys, load, models, needsKey, onlyKey, onlyModel, refusal, rows, sums, to, toggleGroup, total, useAdminKey } from "../state/usage";
import { UsagePlot } from "./UsagePlot";

const NAMES: Record<Group, string> = { day: "Day", key: "Key", model: "Model" };
const MAX_SHOWN = 500;
/** What is shown for usage without a key, or of a key whose name is not known. */
const NO_KEY = "no key";

export function UsageView() {
  return (
    <>
      <h1>Usage</h1>
      {needsKey.value === true && <KeyForm />}
      {needsKey.value === false && <Question />}
      {refusal.value && (
        <p class="problem" role="alert">
          {refusal.value}
        </p>
      )}
      <p class="hint" role="status">
        {isLoading.value ? "Asking the server…" : ""}
      </p>
      {answer.value && (answer.value.rows.length > 0 ? <Found /> : <Nothing />)}
    </>
  );
}

const typed = signal("");
const remembers = signal(false);

function KeyForm() {
  const submit = async (event: Event) => {
    event.preventDefault();
    await useAdminKey(typed.value.trim(), remembers.value);
    if (needsKey.value !== false) return;
    typed.value = "";
    requestAnimationFrame(() => document.querySelector<HTMLElement>(".question input")?.focus()); // this form is gone
  };
  return (
    <form class="form" onSubmit={(event) => void submit(event)}>
      <label>
        Admin key
        <input type="password" autocomplete="off" required value={typed.value} onInput={(event) => (typed.value = event.currentTarget.value)} />
      </label>
      <label class="check">
        <input type="checkbox" checked={remembers.value} onChange={(event) => (remembers.value = event.currentTarget.checked)} />
        Keep it until this tab is closed
      </label>
      <p class="hint">
        Otherwise it is forgotten when the page is left. It is sent to this server only. <code>onward key new NAME --admin</code> makes one.
      </p>
      <button type="submit" class="primary" disabled={isLoading.value}>
        Show usage
      </button>
    </form>
  );
}

/** What is asked of the ledger. */
function Question() {
  const submit = (event: Event) => {
    event.preventDefault();
    void load();
  };
  return (
    <form class="question" onSubmit={submit}>
      <label>
        From
        <input type="date" required value={from.value} onInput={(event) => (from.value = event.currentTarget.value)} />
      </label>
      <label>
        To
        <input type="date" required value={to.value} onInput={(event) => (to.value = event.currentTarget.value)} />
      </label>
      <button type="submit" class="primary">
        Show
      </button>
      {adminKey.value && (
        <button type="button" class="quiet" onClick={forgetKey}>
          Another key…
        </button>
      )}
      <p class="hint">Both days are included. Days begin at midnight UTC.</p>
    </form>
  );
}

function Nothing() {
  return <p>Nothing was used in this period.</p>;
}

/** The answer, narrowed to what is chosen. */
function Found() {
  return (
    <>
      <div class="question">
        <Only label="Key" all="All keys" chosen={onlyKey.value} options={[...keys.value]} choose={(value) => (onlyKey.value = value)} />
        <Only label="Model" all="All models" chosen={onlyModel.value} options={models.value.map((name) => [name, name])} choose={(value) => (onlyModel.value = value)} />
      </div>
      {rows.value.length > 0 ? <Figures /> : <Nothing />}
    </>
  );
}

function Figures() {
  return (
    <>
      <UsagePlot />
      <div class="question">
        <fieldset class="groups">
          <legend>Group by</legend>
          {(["key", "model", "day"] as const).map((name) => (
            <label key={name} class="check">
              <input type="checkbox" checked={by.value.includes(name)} onChange={() => toggleGroup(name)} />
              {NAMES[name]}
            </label>
          ))}
        </fieldset>
        <span class="spacer" />
        <button type="button" onClick={() => exportUsage("csv")}>
          Export CSV
        </button>
        <button type="button" onClick={() => exportUsage("json")}>
          Export JSON
        </button>
      </div>
      <Table />
    </>
  );
}

interface OnlyProps {
  label: string;
  all: string;
  chosen: string | null;
  /** Values, and how they are shown. */
  options: [string, string][];
  choose: (value: string | null) => void;
}

/** Narrows to one value. Options are numbered, so that none can be taken for "all". */
function Only({ label, all, chosen, options, choose }: OnlyProps) {
  return (
    <label>
      {label}
      <select value={String(options.findIndex(([value]) => value === chosen))} onChange={(event) => choose(options[Number(event.currentTarget.value)]?.[0] ?? null)}>
        <option value="-1">{all}</option>
        {options.map(([value, shown], index) => (
          <option key={value} value={String(index)}>
            {shown || NO_KEY}
          </option>
        ))}
      </select>
    </label>
  );
}

const COLUMNS: [string, (amounts: Amounts) => string][] = [
  ["Requests", ({ requests }) => whole(requests)],
  ["Input tokens", ({ input }) => whole(input)],
  ["of these cached", ({ cached }) => whole(cached)],
  ["Output tokens", ({ output }) => whole(output)],
  ["Billed tokens", (amounts) => whole(billed(amounts))],
  ["Cost", (amounts) => money(amounts).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 6 })],
];

function whole(value: number): string {
  return value.toLocaleString("en");
}

function Table() {
  const columns = COLUMNS.filter(([name]) => name !== "Cost" || hasCosts.value);
  const shown = sums.value.slice(0, MAX_SHOWN);
  return (
    <>
      <div class="scroll" role="region" aria-label="Usage as a table" tabIndex={0}>
        <table>
          <thead>
            <tr>
              {by.value.map((name) => (
                <th key={name} scope="col">
                  {NAMES[name]}
                </th>
              ))}
              {by.value.length === 0 && <th scope="col">Total</th>}
              {columns.map(([name]) => (
                <th key={name} scope="col" class="number">
                  {name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {by.value.length > 0 && shown.map((sum) => <Row key={JSON.stringify(sum.group)} sum={sum} columns={columns} />)}
          </tbody>
          <tfoot>
            <tr>
              <th scope="row" colSpan={Math.max(1, by.value.length)}>
                All
              </th>
              {columns.map(([name, text]) => (
                <td key={name}>{text(total.value)}</td>
              ))}
            </tr>
          </tfoot>
        </table>
      </div>
      {sums.value.length > MAX_SHOWN && (
        <p class="hint">
          These are the first {MAX_SHOWN} of {whole(sums.value.length)} rows. The exports have all of them.
        </p>
      )}
      <p class="hint">Tokens are counted as clients saw them in their usage; requests that were answered with an error do not count.</p>
    </>
  );
}

function Row({ sum, columns }: { sum: GroupSum; columns: typeof COLUMNS }) {
  return (
    <tr>
      {by.value.map((name) => (
        <th key={name} scope="row" class={name}>
          {sum.group[name] || NO_KEY}
        </th>
      ))}
      {columns.map(([name, text]) => (
        <td key={name}>{text(sum)}</td>
      ))}
    </tr>
  );
}
