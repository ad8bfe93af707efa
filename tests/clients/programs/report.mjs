// Shared by the programs for Node: the servers' addresses, and reporting of checks (see report.py).
export const urls = JSON.parse(process.env.ONWARD_CLIENT_URLS);
export const key = process.env.ONWARD_CLIENT_KEY;
// The admin key of the server "ledger", and when the days of its requests begin.
export const ledger = JSON.parse(process.env.ONWARD_CLIENT_LEDGER);
export const prompt = "Say this is a test";
const recipes = JSON.parse(process.env.ONWARD_CLIENT_RECIPES);
let failed = 0;

// The settings in a section of the page of editors, for the server at `url`.
export function recipe(section, url) {
  return recipes[section].replaceAll("http://127.0.0.1:8000", url);
}

export function assert(holds, detail = "") {
  if (!holds) throw new Error("assertion failed " + JSON.stringify(detail));
}

export async function check(name, run) {
  try {
    await run();
    console.log(JSON.stringify({ check: name, ok: true }));
  } catch (problem) {
    failed += 1;
    console.log(JSON.stringify({ check: name, ok: false, detail: String(problem.stack ?? problem) }));
  }
}

// The sum of a metric of the server at `url`.
export async function metric(name, url) {
  const lines = (await (await fetch(url + "/metrics")).text()).split("\n");
  const found = lines.filter((line) => line.startsWith(name + " ") || line.startsWith(name + "{"));
  return found.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(" "))), 0);
}

export async function until(holds, seconds = 30) {
  const end = Date.now() + seconds * 1000;
  while (!(await holds())) {
    assert(Date.now() < end, "timed out");
    await new Promise((done) => setTimeout(done, 20));
  }
}

export function exit() {
  process.exit(failed ? 1 : 0);
}
