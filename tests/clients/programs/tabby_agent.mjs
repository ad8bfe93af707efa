// Tabby's agent as a language server, as editors start it: completion items, from the file of settings that it reads.
import { spawn } from "node:child_process";
import { mkdtempSync, mkdirSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import rpc from "vscode-languageserver/node.js";
import { assert, check, exit, key, recipe, urls } from "./report.mjs";

const section = "Language servers: tabby-agent";
const agent = fileURLToPath(new URL("node_modules/tabby-agent/dist/cli.js", import.meta.url));
const lines = ["x = one two one two", "y = one two one two one", "z = one"];
const textDocument = { uri: "file:///work/text.py" };
const position = { line: 1, character: lines[1].length };

async function items(settings) {
  const home = mkdtempSync(join(tmpdir(), "agent-"));
  mkdirSync(join(home, ".tabby-client", "agent"), { recursive: true });
  writeFileSync(join(home, ".tabby-client", "agent", "config.toml"), settings);
  const env = { ...process.env, HOME: home, USERPROFILE: home };
  const child = spawn(process.execPath, [agent, "--lsp", "--stdio"], { env, stdio: ["pipe", "pipe", "inherit"] });
  const server = rpc.createProtocolConnection(
    new rpc.StreamMessageReader(child.stdout),
    new rpc.StreamMessageWriter(child.stdin),
  );
  server.listen();
  try {
    const capabilities = { textDocument: { completion: {} } };
    await server.sendRequest("initialize", { processId: process.pid, rootUri: null, capabilities });
    await server.sendNotification("initialized", {});
    const opened = { ...textDocument, languageId: "python", version: 1, text: lines.join("\n") };
    await server.sendNotification("textDocument/didOpen", { textDocument: opened });
    const answer = await server.sendRequest("textDocument/completion", { textDocument, position });
    return answer.items;
  } finally {
    server.dispose();
    child.kill();
  }
}

const fromServer = (item) => item.data?.completionId?.startsWith("cmpl-");

await check("a completion item with the server's text", async () => {
  const found = await items(recipe(section, urls.editors));
  assert(found.length && found.every(fromServer) && found[0].textEdit.newText, found);
});

await check("a server with keys", async () => {
  const settings = recipe(section, urls.keyed);
  assert((await items(settings.replace('"any"', `"${key}"`))).length);
  assert((await items(settings)).length === 0);
});

exit();
