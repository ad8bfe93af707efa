// Shared by the programs for Node: the servers' addresses, and reporting of checks (see report.py).
export const urls = JSON.parse(process.env.ONWARD_CLIENT_URLS);
export const key = process.env.ONWARD_CLIENT_KEY;
export const prompt = "Say this is a test";
let failed = 0;

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

export function exit() {
  process.exit(failed ? 1 : 0);
}
