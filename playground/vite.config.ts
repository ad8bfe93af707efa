/** Builds one script and one style sheet with fixed names into the Python package; the server adds a version to their URLs. */
import { defineConfig } from "vite";
import { licenses } from "./licenses";

export default defineConfig(({ mode }) => {
  const name = mode === "reference" ? "reference" : "playground";
  return {
    esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
    build: {
      outDir: "../src/onward/server/pages/static",
      emptyOutDir: false,
      target: "es2022",
      modulePreload: false,
      copyPublicDir: false,
      rollupOptions: {
        input: name === "reference" ? "src/reference.ts" : "src/main.tsx",
        output: { entryFileNames: `${name}.js`, assetFileNames: `${name}[extname]`, inlineDynamicImports: true },
      },
    },
    plugins: name === "playground" ? [licenses()] : [],
    define: { "process.env.NODE_ENV": JSON.stringify("production") },
  };
});
