// Storage: one record per conversation and one per message, so that tabs do not overwrite each other's data.
let base = null;
const opened = new Promise((done, fail) => {
  const request = indexedDB.open("mlx-page", 2);
  request.onupgradeneeded = () => {
    for (const name of request.result.objectStoreNames) request.result.deleteObjectStore(name);
    request.result.createObjectStore("talks", { keyPath: "id" });
    request.result.createObjectStore("nodes", { keyPath: "id" }).createIndex("talk", "talk");
  };
  request.onsuccess = () => {
    base = request.result;
    done();
  };
  request.onerror = () => fail(request.error);
});
const result = (request) =>
  new Promise((done, fail) => {
    request.onsuccess = () => done(request.result);
    request.onerror = () => fail(request.error);
  });
// A request may succeed and its transaction fail afterwards, such as when the disk is full.
const committed = (transaction) =>
  new Promise((done, fail) => {
    transaction.oncomplete = () => done();
    transaction.onabort = () => fail(transaction.error ?? new Error("the browser ended the write"));
  });
const records = (name, mode = "readonly") => base.transaction(["talks", "nodes"], mode).objectStore(name);
// The title and settings of a conversation as this tab last read or wrote them.
const lastStored = new WeakMap();
const SHARED = ["title", "system", "fields"];
const sharedOf = (talk) => Object.fromEntries(SHARED.map((name) => [name, JSON.stringify(talk[name])]));
// Takes over what another tab changed and this one did not, before this one writes.
function mergeStored(talk, record) {
  const [before, now] = [lastStored.get(talk) ?? {}, sharedOf(talk)];
  const changed = SHARED.filter(
    (name) => now[name] === before[name] && now[name] !== JSON.stringify(record[name]),
  );
  for (const name of changed) talk[name] = record[name];
  if (changed.length && talk === shown) showFields();
}
// Writes a conversation and some of its messages. A conversation or message that another tab has deleted stays deleted.
async function save(talk, ...nodes) {
  if (!base) return;
  const { isStored } = Object.assign(talk, { updated: Date.now() });
  const talks = records("talks", "readwrite");
  try {
    if (isStored) {
      const stored = await result(talks.get(talk.id));
      if (!stored) return closeDeleted(talk.id);
      mergeStored(talk, stored);
    }
    const { nodes: all, isStored: _, ...record } = talk;
    for (const node of isStored ? nodes.filter((it) => all[it.id]) : Object.values(all))
      talks.transaction.objectStore("nodes").put({ ...node, talk: talk.id });
    talks.put(record);
    const written = sharedOf(record);
    await committed(talks.transaction);
    talk.isStored = true;
    lastStored.set(talk, written);
    tellTabs(
      talk.id,
      nodes.map((it) => it.id),
    );
  } catch (error) {
    setHint("The browser could not store this conversation: " + error.message);
  }
}
// Deletes messages of a conversation, and stores its new end.
async function deleteNodes(talk, ids) {
  for (const id of ids) delete talk.nodes[id];
  if (!base || !talk.isStored) return;
  const nodes = records("nodes", "readwrite");
  for (const id of ids) nodes.delete(id);
  tabs.postMessage({ talk: talk.id, removed: ids });
  await save(talk);
}
async function load(id) {
  const talk = id && base ? await result(records("talks").get(id)) : null;
  if (!talk) return null;
  const nodes = await result(records("nodes").index("talk").getAll(id));
  const loaded = { ...talk, isStored: true, nodes: Object.fromEntries(nodes.map((it) => [it.id, it])) };
  lastStored.set(loaded, sharedOf(loaded));
  return loaded;
}
async function deleteTalk(id) {
  if (!base) return;
  const talks = records("talks", "readwrite");
  const nodes = talks.transaction.objectStore("nodes");
  talks.delete(id);
  for (const key of await result(nodes.index("talk").getAllKeys(id))) nodes.delete(key);
  tabs.postMessage({ gone: id });
}
function closeDeleted(id) {
  runs.get(id)?.abort.abort();
  if (shown.id === id) {
    show(null);
    say("This conversation was deleted.");
  }
}
