// Several tabs on one conversation: a tab shows what another tab writes, and the answer that it receives.
const tabs = new BroadcastChannel("mlx-page");
// A tab without a sign of its answer for this long was closed.
const SILENCE = 6000;
// Answers that other tabs receive: for each conversation the message and the time of the last sign.
const remoteRuns = new Map();
const tellTabs = (talk, nodes) => tabs.postMessage({ talk, nodes, running: runs.get(talk)?.node.id });
// Returns the message that this or another tab is receiving now.
const runningNode = (talk) => runs.get(talk)?.node.id ?? remoteRuns.get(talk)?.node;
const isAnswering = (talk) => runningNode(talk) !== undefined;
// Stops the answer, in whichever tab receives it.
function stopAnswer(talk) {
  if (runs.has(talk)) runs.get(talk).abort.abort();
  else if (remoteRuns.has(talk)) tabs.postMessage({ stop: talk });
}
// Sends the text of a growing answer to other tabs a few times a second. Its tokens follow when it is stored.
const LIVE_INTERVAL = 200;
function tellText(run) {
  const now = performance.now();
  if (now < (run.nextTell ?? 0)) return;
  run.nextTell = now + LIVE_INTERVAL;
  const { id, parent, role, at, model, end, content, thought, calls } = run.node;
  const node = { id, parent, role, at, model, end, content, thought, calls };
  tabs.postMessage({ talk: run.talk.id, live: node, running: id });
}
function onText({ talk, live }) {
  if (shown.id !== talk || runs.has(talk)) return;
  shown.nodes[live.id] = Object.assign(shown.nodes[live.id] ?? {}, live);
  if (shown.leaf !== live.id && live.parent === shown.leaf) shown.leaf = live.id;
  draw();
}
function noteRemoteRun({ talk, running, removed }) {
  if (removed) return;
  if (running) remoteRuns.set(talk, { node: running, at: performance.now() });
  else remoteRuns.delete(talk);
}
async function adoptNodes(talk, ids) {
  for (const id of ids) {
    const node = await result(records("nodes").get(id));
    if (node && id !== runs.get(talk.id)?.node.id) talk.nodes[id] = Object.assign(talk.nodes[id] ?? {}, node);
  }
}
// Takes over the other fields of a conversation, such as its title and settings. A tab that receives an answer keeps its end and model.
async function adoptRecord(talk) {
  if (!base) return;
  const record = await result(records("talks").get(talk.id));
  if (!record || record.updated < (talk.updated ?? 0)) return;
  const before = JSON.stringify([talk.system, talk.fields]);
  const own = runs.has(talk.id) ? { leaf: talk.leaf, model: talk.model } : {};
  Object.assign(talk, record, own);
  lastStored.set(talk, sharedOf(talk));
  if (talk !== shown) return;
  if (models.some((it) => it.id === talk.model)) $("model").value = talk.model;
  if (JSON.stringify([talk.system, talk.fields]) !== before) showFields();
}
tabs.onmessage = async ({ data }) => {
  if (!base || !shown) return;
  if (data.stop) runs.get(data.stop)?.abort.abort();
  if (data.gone) closeDeleted(data.gone);
  if (!data.talk) return drawList();
  noteRemoteRun(data);
  if (data.live) return onText(data);
  const talk = runs.get(data.talk)?.talk ?? (shown.id === data.talk ? shown : null);
  if (talk) {
    const running = runs.get(talk.id)?.node.id;
    if (data.removed?.includes(running)) {
      // This tab may have stored it again before it heard of this.
      records("nodes", "readwrite").delete(running);
      stopAnswer(talk.id);
    }
    for (const id of data.removed ?? []) delete talk.nodes[id];
    await adoptNodes(talk, data.nodes ?? []);
    await adoptRecord(talk);
    if (talk === shown) draw();
  }
  drawList();
};
setInterval(() => {
  for (const [talk, run] of runs) {
    tabs.postMessage({ talk, nodes: [], running: run.node.id });
    tellText(run);
  }
  for (const [talk, { at }] of remoteRuns) {
    if (performance.now() - at < SILENCE) continue;
    remoteRuns.delete(talk);
    if (shown?.id === talk) draw();
  }
}, 1000);
// Theme, presets and defaults are in localStorage, which reports changes by other tabs.
window.onstorage = ({ key }) => {
  if (key === "mlx-theme") applyTheme();
  if (key === "mlx-presets") showPresets();
  if (key === "mlx-servers-off") showTools();
};
