/** What the server wrote into the page. */
import type { Parameter } from "../core/settings";

export interface Start {
  version: string;
  profile: "strict" | "default" | "lenient";
  requiresKey: boolean;
  /** Whether there is usage to see. */
  hasLedger: boolean;
  /** What serves a real small model in place of the built-in one, as this server was started. */
  realModelCommand: string;
  nonce: string;
  parameters: Parameter[];
}

export const start = JSON.parse(document.getElementById("start")?.textContent ?? "{}") as Start;
export const isStrict = start.profile === "strict";
