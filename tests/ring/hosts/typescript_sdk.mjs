// A host made of the official TypeScript SDK's client.
//
// Usage: node typescript_sdk.mjs FOLDER_WITH_NODE_MODULES COMMAND [ARGUMENT...]; it starts the command as its MCP server and
// obeys the lines on standard input: {"op":"list"} and {"op":"call","tool":NAME,"arguments":OBJECT}, one JSON answer a line.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { createInterface } from "node:readline";
import path from "node:path";

const [folder, command, ...args] = process.argv.slice(2);
const require = createRequire(path.join(path.resolve(folder), "package.json"));
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { Client } = await load("@modelcontextprotocol/sdk/client/index.js");
const { StdioClientTransport } = await load("@modelcontextprotocol/sdk/client/stdio.js");

const client = new Client({ name: "ring-typescript", version: "1.0.0" });
await client.connect(new StdioClientTransport({ command, args }));

async function obey(order) {
  if (order.op === "list") {
    const listed = await client.listTools();
    return { tools: listed.tools.map((tool) => tool.name) };
  }
  const result = await client.callTool({ name: order.tool, arguments: order.arguments });
  return {
    text: result.content.filter((block) => block.type === "text").map((block) => block.text).join("\n"),
    is_error: result.isError ?? false,
    structured: result.structuredContent ?? null,
  };
}

for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    answer = await obey(JSON.parse(line));
  } catch (error) {
    answer = { failure: String(error) };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
await client.close();
