// The server. A request that reaches no server throws Unreachable; its sender repeats it once the server is back.
class Unreachable extends Error {}
// Under /api, the error is the message.
async function errorMessage(reply) {
  const error = (await reply.json().catch(() => null))?.error;
  return error?.message || (typeof error === "string" && error) || "the server answered " + reply.status;
}
let apiKey = readText("sessionStorage", "mlx-key");
function useKey(key) {
  apiKey = key;
  writeText("sessionStorage", "mlx-key", key);
}
async function request(path, more = {}) {
  const headers = { ...more.headers, ...(apiKey && { authorization: "Bearer " + apiKey }) };
  const reply = await fetch(path, { ...more, headers }).catch((error) => {
    throw error.name === "AbortError" ? error : new Unreachable();
  });
  $("locked").hidden = reply.status !== 401;
  if (!reply.ok) throw new Error(await errorMessage(reply));
  return reply;
}
const postText = (path, body, signal) =>
  request(path, { method: "POST", headers: { "content-type": "application/json" }, body, signal });
const post = (path, body, signal) => postText(path, JSON.stringify(body), signal);
let reconnectTimer = null;
const pendingAnswers = new Map();
function onUnreachable(talk, node) {
  if (node) pendingAnswers.set(talk.id, { talk, node });
  if (reconnectTimer) return;
  $("banner").textContent =
    "The server does not respond. Your text is saved; the page continues when the server is back.";
  $("banner").hidden = false;
  reconnectTimer = setInterval(async () => {
    try {
      if (!(await fetch("health")).ok) return;
    } catch {
      return;
    }
    clearInterval(reconnectTimer);
    reconnectTimer = null;
    $("banner").hidden = true;
    say("The server is back.");
    // It may have other MCP servers now.
    toolsAreRead = false;
    await refresh();
    const waiting = [...pendingAnswers.values()];
    pendingAnswers.clear();
    for (const it of waiting) if (it.talk.nodes[it.node.id]) answer(it.talk, it.node);
  }, 1000);
}
