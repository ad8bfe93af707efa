/** The API reference: sends the examples of the page, and shows what the server answers. */
import "./theme.css";
import "./reference.css";
import { BASE } from "./api/base";
import { showTheme, storedTheme } from "./state/storage";

const MAX_SHOWN = 20_000;
const EXAMPLE_MODEL = "storyteller";

/** The model that the examples name; null while they are as the server sent them. */
let model: string | null = null;

showTheme(storedTheme());
for (const element of document.querySelectorAll<HTMLElement>(".try")) element.hidden = false;
for (const form of document.querySelectorAll<HTMLFormElement>("form.try")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    void sendExample(form);
  });
}
document.querySelector("#key")?.addEventListener("change", () => void useServedModel());
addEventListener("focus", () => void useServedModel()); // models come and go while the server runs
void useServedModel();

/** Lets the examples name the first model that this server has, but for those that were edited. */
async function useServedModel(): Promise<void> {
  const response = await fetch(new URL("v1/models", BASE), { headers: headers() }).catch(() => null);
  if (!response?.ok) return;
  const served = ((await response.json()) as { data: { id: string }[] }).data[0]?.id;
  if (!served) return;
  for (const field of document.querySelectorAll<HTMLInputElement | HTMLTextAreaElement>("form.try input, form.try textarea")) {
    if (field.value === example(field, model)) field.value = example(field, served);
  }
  model = served;
}

function example({ defaultValue }: HTMLInputElement | HTMLTextAreaElement, name: string | null): string {
  if (name === null) return defaultValue;
  return defaultValue.replace("MODEL", () => name).replace(JSON.stringify(EXAMPLE_MODEL), () => JSON.stringify(name));
}

function headers(): Record<string, string> {
  const key = document.querySelector<HTMLInputElement>("#key")?.value.trim();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function sendExample(form: HTMLFormElement): Promise<void> {
  const body = form.querySelector("textarea")?.value;
  const path = form.querySelector("input")?.value ?? "/";
  const answer = form.querySelector("output");
  const button = form.querySelector("button");
  if (!answer || !button) return;
  button.disabled = true;
  answer.textContent = "Sending…";
  try {
    const kind: Record<string, string> = body === undefined ? {} : { "Content-Type": "application/json" };
    const init = { method: form.dataset.method ?? "GET", headers: { ...kind, ...headers() }, ...(body === undefined ? {} : { body }) };
    const response = await fetch(new URL(path.replace(/^\/+/, ""), BASE), init);
    answer.textContent = `${response.status} ${response.statusText}\n\n${shown(await response.text())}`;
  } catch {
    answer.textContent = "The server cannot be reached. Is it running?";
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
