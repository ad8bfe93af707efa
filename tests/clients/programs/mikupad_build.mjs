// Bundles Mikupad's modules into its page, as its own build does: `node mikupad_build.mjs mikupad.html COMPILED.html`.
import { readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const [source, compiled] = process.argv.slice(2);
const [, head, script, tail] = readFileSync(source, "utf8").match(/^(.*)<script type="module">(.*)<\/script>(.*)$/s);
// A package that not every registry has. It calls back when an element's content has changed its size.
const observer = `export class SVResizeObserver {
  constructor(callback) { this.observer = new MutationObserver(callback); }
  observe(element) { this.observer.observe(element, { childList: true, subtree: true }); }
  disconnect() { this.observer.disconnect(); }
}`;
const plugin = {
  name: "scrollview-resize",
  setup(build) {
    build.onResolve({ filter: /^scrollview-resize$/ }, () => ({ path: "observer", namespace: "observer" }));
    build.onLoad({ filter: /./, namespace: "observer" }, () => ({ contents: observer }));
  },
};
const { outputFiles: [bundle] } = await build({
  stdin: { contents: script, resolveDir: "." },
  bundle: true, format: "esm", write: false, plugins: [plugin], define: { "process.env.NODE_ENV": '"production"' },
});
const code = bundle.text.replaceAll("</script", "<\\/script");
const page = head.replace(/<script type="importmap">.*?<\/script>/s, "");
writeFileSync(compiled, `${page}<script type="module">${code}</script>${tail}`);
