// Export and import. A file is untrusted: only known members of the right type are imported, with new ids.
function importedTalk(given) {
  const text = textOrEmpty;
  const number = (it) => (Number.isFinite(it) ? it : undefined);
  const list = (it) => (Array.isArray(it) ? it.slice(0, 1000) : []);
  const isMessage = ([, it]) => ["user", "assistant"].includes(it?.role);
  const entries = Object.entries(Object(given.nodes)).filter(isMessage);
  const ids = new Map(entries.map(([id]) => [id, newId()]));
  const calls = (it) => ({ id: text(it?.id), name: text(it?.name), arguments: text(it?.arguments) });
  const pictures = (given) =>
    list(given)
      .filter((it) => IMAGE_URL.test(text(it?.url)))
      .map((it) => ({ name: text(it.name).slice(0, 200) || "picture", url: it.url }));
  const results = (it) => ({
    id: text(it?.id),
    name: text(it?.name),
    content: text(it?.content),
    pictures: pictures(it?.pictures),
  });
  const files = (given) =>
    list(given)
      .filter((it) => typeof it?.text === "string")
      .map((it) => ({
        name: text(it.name).slice(0, 200) || "file",
        size: number(it.size) ?? it.text.length,
        text: it.text,
      }));
  const node = ([id, it]) => ({
    id: ids.get(id),
    parent: ids.get(it.parent) ?? null,
    role: it.role,
    content: text(it.content),
    pictures: pictures(it.pictures),
    files: files(it.files),
    thought: text(it.thought) || undefined,
    thinking: number(it.thinking),
    at: number(it.at) ?? 0,
    seed: number(it.seed),
    model: text(it.model) || undefined,
    end: text(it.end) || undefined,
    calls: list(it.calls).length ? list(it.calls).map(calls) : undefined,
    results: list(it.results).length ? list(it.results).map(results) : undefined,
  });
  return {
    ...emptyTalk(),
    title: text(given.title).slice(0, 200) || "Imported",
    system: text(given.system),
    model: text(given.model),
    leaf: ids.get(given.leaf) ?? null,
    fields: Object.fromEntries(
      Object.entries(Object(given.fields)).filter(
        ([name, it]) => /^\w{1,64}$/.test(name) && !PAGE_FIELDS.includes(name) && typeof it === "string",
      ),
    ),
    nodes: Object.fromEntries(entries.map(node).map((it) => [it.id, it])),
  };
}
async function importFile(file) {
  let given;
  try {
    given = JSON.parse(await file.text()).conversations;
    if (!Array.isArray(given)) throw new Error("no list");
  } catch {
    return flashHint("This file is not an export of this page; nothing was imported.");
  }
  const talks = given.map((it) => importedTalk(Object(it))).filter((it) => it.leaf);
  for (const it of talks) await save(it);
  if (talks.length) await show(talks.at(-1).id);
  flashHint(talks.length + (talks.length === 1 ? " conversation was" : " conversations were") + " imported.");
}
async function exportJson() {
  const talks = [];
  for (const { id } of await result(records("talks").getAll())) {
    const { isStored, ...talk } = await load(id);
    for (const [key, { talk: _, tokens, ...node }] of Object.entries(talk.nodes)) talk.nodes[key] = node;
    talks.push(talk);
  }
  return JSON.stringify({ format: "mlx-page", conversations: talks }, null, 1);
}
