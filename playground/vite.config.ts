/** Builds one script and one style sheet with fixed names into the Python package; the server adds a version to their URLs. */
import { defineConfig } from "vite";

export default defineConfig(({ mode }) => {
  const name = mode === "reference" ? "reference" : "playground";
  return {
    build: {
      outDir: "../src/onward/server/pages/static",
      emptyOutDir: false,
      target: ["chrome123", "firefox121", "safari17.5"], // the first with light-dark(), which would be rewritten for older ones
      modulePreload: false,
      copyPublicDir: false,
      license: name === "playground" ? { fileName: "LICENSES.txt" } : false,
      rolldownOptions: {
        input: name === "reference" ? "src/reference.ts" : "src/main.tsx",
        output: { entryFileNames: `${name}.js`, assetFileNames: `${name}[extname]`, codeSplitting: false, comments: false },
      },
    },
    define: { "process.env.NODE_ENV": JSON.stringify("production") },
  };
});
