// Tool calls and their results. A call of a server's tool runs after a click, or without one if the user has allowed the tool in the
// conversation.
const MAX_ROUNDS = 16;
// The tools that run without a question, by conversation. They are not stored, so no reload, import or other tab allows a call.
const allowedTools = new Map();
// The calls that are running.
const calling = new Map();
const callKey = (node, place) => node.id + " " + place;
const toolKey = (tool) => JSON.stringify([tool.server, tool.tool]);
const isAllowed = (talk, tool) => Boolean(tool && allowedTools.get(talk.id)?.has(toolKey(tool)));
function collapsible(title, text) {
  return el("details", {}, el("summary", { textContent: title }), el("pre", { textContent: text }));
}
// Returns JSON with line breaks, and without a change of any value: a number may be longer than the page's numbers. Other text is returned
// unchanged.
function pretty(text) {
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  let depth = 0;
  const line = () => "\n" + "  ".repeat(depth);
  const parts = text.match(/"(?:[^"\\]|\\.)*"|[{[]\s*[}\]]|[{}[\],:]|[^\s"{}[\],:]+/g) ?? [];
  return parts
    .map((part) => {
      if (part === "{" || part === "[") {
        depth += 1;
        return part + line();
      }
      if (part === "}" || part === "]") {
        depth -= 1;
        return line() + part;
      }
      return part === "," ? "," + line() : part === ":" ? ": " : part;
    })
    .join("");
}
// The reason that a call cannot run, or "".
function faultOf(call) {
  try {
    const given = JSON.parse(call.arguments.trim() || "{}");
    if (given && typeof given === "object" && !Array.isArray(given)) return "";
  } catch {
    /* The text below is the result. */
  }
  return "The call was not carried out: its arguments are not a JSON object.";
}
// The result of a call in the form that is stored.
function storedResult({ content, is_error: isError }) {
  const texts = content.filter((it) => it.type === "text").map((it) => it.text);
  const urls = content.map((it) => it.image_url?.url).filter((it) => IMAGE_URL.test(it));
  return {
    content: [...(isError ? ["The tool reported an error:"] : []), ...texts].join("\n"),
    pictures: urls.map((url, place) => ({ name: "picture " + (place + 1), url })),
  };
}
async function callResult(call, tool, signal) {
  const fault = faultOf(call);
  if (fault) return { content: fault };
  // The arguments are sent as the model wrote them.
  const [server, name] = [JSON.stringify(tool.server), JSON.stringify(tool.tool)];
  const body = `{"server":${server},"tool":${name},"arguments":${call.arguments.trim() || "{}"}}`;
  try {
    return storedResult(await (await postText("v1/mcp/call", body, signal)).json());
  } catch (error) {
    if (error.name === "AbortError") return { content: "The user stopped the call." };
    const reason = error instanceof Unreachable ? "the server does not respond" : error.message;
    return { content: "The call failed: " + reason.replace(/\.*$/, ".") };
  }
}
async function runCall(talk, node, place, tool) {
  const key = callKey(node, place);
  if (calling.has(key)) return;
  const abort = new AbortController();
  calling.set(key, { talk: talk.id, abort });
  if (talk === shown) draw();
  say("Calling " + tool.tool + ".");
  const found = await callResult(node.calls[place], tool, abort.signal);
  calling.delete(key);
  await finishCall(talk, node, place, found);
}
async function finishCall(talk, node, place, found) {
  const current = talk.nodes[node.id];
  if (!current?.calls?.[place]) return;
  current.calls[place].result = found;
  await save(talk, current);
  settleCalls(talk, current);
}
function stopCalls(talk) {
  for (const it of calling.values()) if (it.talk === talk) it.abort.abort();
}
// The number of answers since the user's last message.
function roundsBefore(talk, node) {
  const line = path(talk, node.id);
  return line.length - 1 - line.findLastIndex((it) => it.role === "user");
}
// Runs the calls that need no question, and continues the answer once all calls have results.
function settleCalls(talk, node) {
  const waits = talk.leaf === node.id && node.end === "tool_calls" && !isAnswering(talk.id);
  if (waits) {
    const calls = node.calls.filter(Boolean);
    if (calls.every((it) => it.result)) return continueAfter(talk, node);
    const isShort = roundsBefore(talk, node) <= MAX_ROUNDS;
    node.calls.forEach((it, place) => {
      const tool = it && !it.result && toolNamed(it.name);
      if (tool && isShort && (isAllowed(talk, tool) || faultOf(it))) runCall(talk, node, place, tool);
      else if (tool) say("The model asks to call " + tool.tool + ".");
    });
  }
  if (talk === shown) draw();
}
function continueAfter(talk, node) {
  const results = node.calls
    .filter(Boolean)
    .map(({ id, name, result }) => ({ id, name, content: result.content, pictures: result.pictures }));
  if (talk === shown) followEnd();
  answer(talk, add(talk, "assistant", "", node.id, { results }));
}
// A call that waits for the user: its server, tool and arguments, and the buttons that decide.
function questionNode(node, place, tool) {
  const call = node.calls[place];
  const talk = shown;
  const always = () => {
    const keys = allowedTools.get(talk.id) ?? new Set();
    allowedTools.set(talk.id, keys.add(toolKey(tool)));
    settleCalls(talk, node);
  };
  const decline = () => finishCall(talk, node, place, { content: "The user declined this tool call." });
  const running = calling.get(callKey(node, place));
  const buttons = running
    ? [el("span", { className: "wait", textContent: "Running …" }), button("Stop call", "", () => running.abort.abort())]
    : [
        button("Run once", "", () => runCall(talk, node, place, tool)),
        button("Always in this chat", "", always),
        button("No", "No, decline this call", decline),
      ];
  if (!running) buttons[0].classList.add("main");
  const name = (text) => el("strong", { textContent: revealed(text) });
  const text = el("pre", { textContent: revealed(pretty(call.arguments)), tabIndex: 0 });
  const title = el("p", {}, "Run ", name(tool.tool), " of the MCP server ", name(tool.server), " with:");
  return el("div", { className: "call" }, title, text, el("div", { className: "buttons" }, buttons));
}
function resultNode({ name, content, pictures = [] }) {
  const node = collapsible("Result of " + name, visible(content));
  if (pictures.length) node.append(attachmentsNode({ pictures }));
  return node;
}
// Changes whenever the calls of an answer look different.
const callsKey = (node) =>
  JSON.stringify([
    node.calls,
    node.end,
    shown.leaf === node.id,
    isAnswering(shown.id),
    node.calls?.map((it, place) => [calling.has(callKey(node, place)), it && toolNamed(it.name)?.server]),
  ]);
// If the answer waits for results: a question for each call of a server's tool, and a field for the result of other calls.
function callsNode(node) {
  const waits = node.end === "tool_calls" && shown.leaf === node.id && !isAnswering(shown.id);
  const fields = new Map();
  const partOf = (it, place) => {
    const tool = toolNamed(it.name);
    if (waits && tool && !it.result) return questionNode(node, place, tool);
    const isOwn = waits && !it.result;
    const folded = el(
      "details",
      { open: isOwn },
      el("summary", { textContent: "Tool call: " + it.name }),
      el("pre", { textContent: visible(pretty(it.arguments)), tabIndex: 0 }),
    );
    if (isOwn) {
      const field = el("textarea", { rows: 2, placeholder: "Result" });
      field.setAttribute("aria-label", "Result of " + it.name);
      fields.set(it, field);
    }
    const shownResult = waits && it.result ? resultNode({ name: it.name, ...it.result }) : [];
    return el("div", { className: "call" }, folded, shownResult, fields.get(it) ?? []);
  };
  const out = node.calls.flatMap((it, place) => (it ? [partOf(it, place)] : []));
  const go = async () => {
    for (const [it, field] of fields) it.result = { content: field.value };
    await save(shown, node);
    settleCalls(shown, node);
  };
  const isLeft = waits && node.calls.some((it) => it && !it.result && !fields.has(it));
  return waits && (fields.size || !isLeft) ? [...out, button("Send results", "", go)] : out;
}
