/** The API reference: sends the examples of the page, and shows what the server answers. */
import { BASE } from "./api/client";

const MAX_SHOWN = 20_000;

for (const form of document.querySelectorAll<HTMLFormElement>("form.try")) {
  form.hidden = false;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    void sendExample(form);
  });
}

async function sendExample(form: HTMLFormElement): Promise<void> {
  const { method = "GET", path = "/" } = form.dataset;
  const body = form.querySelector("textarea")?.value;
  const key = document.querySelector<HTMLInputElement>("#key")?.value.trim();
  const answer = form.querySelector("output");
  const button = form.querySelector("button");
  if (!answer || !button) return;
  button.disabled = true;
  answer.textContent = "Sending…";
  try {
    const headers = { ...(body ? { "Content-Type": "application/json" } : {}), ...(key ? { Authorization: `Bearer ${key}` } : {}) };
    const response = await fetch(new URL(path.slice(1), BASE), { method, headers, ...(body ? { body } : {}) });
    const text = await response.text();
    answer.textContent = `${response.status} ${response.statusText}\n\n${shown(text)}`;
  } catch (error) {
    answer.textContent = `The server cannot be reached: ${String(error)}`;
  }
  button.disabled = false;
}

function shown(text: string): string {
  let readable = text;
  try {
    readable = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // not JSON: shown as it is
  }
  return readable.length > MAX_SHOWN ? `${readable.slice(0, MAX_SHOWN)}\n… ${readable.length - MAX_SHOWN} more characters` : readable;
}
