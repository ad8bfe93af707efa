/** A build plugin: the licences of all packages whose code is part of the page, as they ask for. */
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import type { Plugin } from "vite";

const NAME = "LICENSES.txt";

export function licenses(): Plugin {
  return {
    name: "licenses",
    generateBundle() {
      const folders = new Set<string>();
      for (const id of this.getModuleIds()) {
        const found = /^(.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(id.replace(/^\0/, ""));
        if (found?.[1] && existsSync(join(found[1], "package.json"))) folders.add(found[1]);
      }
      const source = [...folders].map(licenseOf).sort().join("\n");
      this.emitFile({ type: "asset", fileName: NAME, source: `${NAME}: other packages that are part of playground.js\n\n${source}` });
    },
  };
}

function licenseOf(folder: string): string {
  const { name, version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf-8"));
  const file = readdirSync(folder).find((each) => /^licen[cs]e/i.test(each));
  const text = file ? readFileSync(join(folder, file), "utf-8").replaceAll("\r\n", "\n").trim() : `License: ${license}`;
  return `${name} ${version}\n${"-".repeat(40)}\n${text}\n`;
}
