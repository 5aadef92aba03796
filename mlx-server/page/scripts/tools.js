// The tools of the server's MCP servers. The model may call those of the servers that are switched on.
const OFF_KEY = "mlx-servers-off";
let serverTools = [];
let toolServers = [];
let toolsAreRead = false;
const toolNamed = (name) => serverTools.find((it) => it.name === name);
const serversOff = () => [readStored(OFF_KEY) ?? []].flat();
// Reads the list, and reads it again while a server of it cannot be used.
async function readTools() {
  if (toolsAreRead) return;
  toolsAreRead = true;
  try {
    const list = await (await request("v1/mcp/tools")).json();
    const before = JSON.stringify([serverTools, toolServers]);
    [serverTools, toolServers] = [list.data, list.servers];
    toolsAreRead = toolServers.every((it) => !it.error);
    if (JSON.stringify([serverTools, toolServers]) === before) return;
    showTools();
    draw();
  } catch (error) {
    // Without a key or after a break, refresh asks again.
    if (error instanceof Unreachable || !$("locked").hidden) toolsAreRead = false;
  }
}
function switchServer(name, isOn) {
  writeStored(OFF_KEY, [...serversOff().filter((it) => it !== name), ...(isOn ? [] : [name])]);
  countTools();
}
function serverNode(it) {
  if (it.error) return el("p", { className: "note", textContent: visible(it.error) });
  const box = el("input", { type: "checkbox", checked: !serversOff().includes(it.name) });
  box.onchange = () => switchServer(it.name, box.checked);
  const own = serverTools.filter((tool) => tool.server === it.name);
  const rows = own.map((tool) =>
    el(
      "li",
      {},
      el("strong", { textContent: revealed(tool.tool) }),
      " " + revealed(tool.description.split("\n")[0]),
    ),
  );
  const list = el("ul", { tabIndex: 0 }, rows);
  list.setAttribute("aria-label", "Tools of " + it.name);
  return el(
    "div",
    {},
    el("label", {}, it.name, box),
    el("details", {}, el("summary", { textContent: plural(own.length, "tool") }), list),
  );
}
function countTools() {
  const count = serverTools.filter((it) => !serversOff().includes(it.server)).length;
  $("tools").firstElementChild.textContent = "Tools · " + count;
}
function showTools() {
  $("tools").hidden = !toolServers.length;
  $("tool-servers").replaceChildren(...toolServers.map(serverNode));
  countTools();
}
// The tools for a request: those of the conversation's settings, then those of servers.
function withServerTools(given, model) {
  if (!abilities.get(model)?.tools || (given && !Array.isArray(given))) return given;
  const taken = (given ?? []).map((it) => it?.function?.name);
  const off = serversOff();
  const added = serverTools
    .filter((it) => !off.includes(it.server) && !taken.includes(it.name))
    .map(({ name, description, parameters }) => ({
      type: "function",
      function: { name, description, parameters },
    }));
  return added.length ? [...(given ?? []), ...added] : given;
}
