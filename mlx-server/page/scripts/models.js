// The models of the server, and what each one can do.
const MODEL_KEY = "mlx-model";
const abilities = new Map();
async function readAbilities(model) {
  try {
    const shown = await (await post("api/show", { model })).json();
    const has = (name) => shown.capabilities.includes(name);
    abilities.set(model, { vision: has("vision"), tools: has("tools"), chat: shown.chat });
  } catch {
    /* The next request reports the error. */
  }
}
async function checkModel() {
  showSampling();
  if ($("model").value) await readAbilities($("model").value);
  const isBase = isBaseModel($("model").value);
  $("input").placeholder = isBase ? "A text to continue" : "Ask something";
  $("talk").classList.toggle("continuing", isBase);
  $("tools-unused").hidden = abilities.get($("model").value)?.tools !== false;
  draw();
}
// The models that this page is loading.
const loading = new Set();
const isLoaded = (model) => models.find((it) => it.id === model)?.loaded !== false;
// Loads a model before the first message. A message loads it too.
async function loadModel(model) {
  if (loading.has(model)) return;
  loading.add(model);
  draw();
  say("Loading " + model + ".");
  try {
    await post("api/generate", { model });
  } catch (error) {
    if (!(error instanceof Unreachable)) flashHint(model + " was not loaded: " + error.message);
  }
  loading.delete(model);
  await refresh();
  draw();
}
// Frees the memory of a model. Its answers end first.
async function unloadModel(model) {
  try {
    await post("v1/models/unload", { model });
    say(model + " is unloaded.");
  } catch (error) {
    if (!(error instanceof Unreachable)) flashHint(model + " was not unloaded: " + error.message);
  }
  await refresh();
  draw();
}
const optionText = (it) =>
  it.id + (it.loaded ? " · loaded" : "") + (it.max_model_len ? " · " + it.max_model_len + " tokens" : "");
async function refresh() {
  readTools();
  try {
    const { data: list, allows_pull: allowsPull } = await (await request("v1/models")).json();
    $("downloads").hidden = !allowsPull;
    if (JSON.stringify(list) !== JSON.stringify(models)) {
      const wanted = [$("model").value, shown.model, readStored(MODEL_KEY)];
      models = list;
      showMicrophone();
      // Models with unreadable files have no capabilities. They are listed, so that their error is shown.
      const chats = list.filter((it) => !it.capabilities.length || it.capabilities.includes("completion"));
      $("model").replaceChildren(
        ...chats.map((it) => el("option", { value: it.id, textContent: optionText(it) })),
      );
      const selected = wanted.find((name) => chats.some((it) => it.id === name));
      if (selected) $("model").value = selected;
      await checkModel();
    }
    if (!$("advanced").firstChild) await readFields();
  } catch (error) {
    if (error instanceof Unreachable) onUnreachable();
  }
}
$("model").onchange = () => {
  shown.model = $("model").value;
  writeStored(MODEL_KEY, shown.model);
  if (shown.isStored) save(shown);
  checkModel();
};
