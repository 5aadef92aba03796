// Conversations: messages are nodes with a parent; `leaf` is the end of the shown branch.
let shown = null;
let models = [];
// The answers that this tab receives, by conversation; the answers that are shown as tokens.
const runs = new Map();
const heat = new Set();
const emptyTalk = () => ({
  id: newId(),
  title: "New conversation",
  nodes: {},
  leaf: null,
  ...defaultSettings(),
  model: "",
});
function path(talk, leaf) {
  const out = [];
  for (let id = leaf; id && talk.nodes[id] && out.length < 10000; id = talk.nodes[id].parent)
    out.push(talk.nodes[id]);
  return out.reverse();
}
const siblings = (node) =>
  Object.values(shown.nodes)
    .filter((it) => it.parent === node.parent && it.role === node.role)
    .sort((a, b) => a.at - b.at);
function add(talk, role, content, parent, more) {
  const node = { id: newId(), parent, role, content, at: Date.now(), ...more };
  talk.nodes[node.id] = node;
  talk.leaf = node.id;
  return node;
}
function deepest(node) {
  const newest = new Map();
  for (const it of Object.values(shown.nodes))
    if (!(newest.get(it.parent)?.at > it.at)) newest.set(it.parent, it);
  let at = node;
  for (let steps = 0; newest.has(at.id) && steps < 10000; steps += 1) at = newest.get(at.id);
  return at.id;
}
// Returns a message and all messages after it, on all branches.
function withDescendants(talk, node) {
  const children = new Map();
  for (const it of Object.values(talk.nodes))
    children.set(it.parent, [...(children.get(it.parent) ?? []), it.id]);
  const out = [node.id];
  for (let place = 0; place < out.length; place += 1) out.push(...(children.get(out[place]) ?? []));
  return out;
}
// Deletes a message and all messages after it, and shows the branch beside it, or the messages before it.
async function deleteMessage(talk, node) {
  const ids = withDescendants(talk, node);
  const after = ids.length - 1;
  const question = after
    ? "Delete this message and the " + plural(after, "message") + " after it?"
    : "Delete this message?";
  if (!confirm(question)) return;
  const beside = siblings(node)
    .filter((it) => it !== node)
    .at(-1);
  talk.leaf = beside ? deepest(beside) : node.parent;
  await deleteNodes(talk, ids);
  draw();
}
