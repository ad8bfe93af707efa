/**
 * Builds one script and one style sheet per page, with fixed names, into the Python package; the server adds a version to
 * their URLs. The mode is the page.
 */
import { defineConfig } from "vite";

const PAGES: Record<string, string> = { playground: "src/main.tsx", reference: "src/reference.ts", usage: "src/usage.tsx" };

export default defineConfig(({ mode }) => {
  const name = mode in PAGES ? mode : "playground";
  return {
    build: {
      outDir: "../src/onward/server/pages/static",
      emptyOutDir: false,
      target: ["chrome123", "firefox121", "safari17.5"], // the first with light-dark(), which would be rewritten for older ones
      modulePreload: false,
      copyPublicDir: false,
      license: name === "playground" ? { fileName: "LICENSES.txt" } : false,
      rolldownOptions: {
        input: PAGES[name] as string,
        output: { entryFileNames: `${name}.js`, assetFileNames: `${name}[extname]`, codeSplitting: false, comments: false },
      },
    },
    define: { "process.env.NODE_ENV": JSON.stringify("production") },
  };
});
