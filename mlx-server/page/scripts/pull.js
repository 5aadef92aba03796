// Downloads of models from the Hugging Face Hub, if the server allows them. The server runs one at a time, for a page that stays open.
let pull = null;
// The lines of the server about a download.
async function* pullLines(reply) {
  for await (const text of linesOf(reply)) {
    const line = JSON.parse(text);
    if (line.error) throw new Error(line.error);
    yield line;
    if (line.status === "success") return;
  }
  throw new Unreachable();
}
function showPull(text, line) {
  $("pull-text").textContent = text;
  if (!line?.total) return;
  $("pull-bar").value = line.completed / line.total;
  const percent = Math.floor((100 * line.completed) / line.total);
  $("pull-text").textContent =
    sizeText(line.completed) + " of " + sizeText(line.total) + " · " + percent + " %";
}
function showPullControls() {
  $("pull-start").disabled = Boolean(pull);
  $("pull-bar").hidden = $("pull-cancel").hidden = $("pull-note").hidden = !pull;
}
// Selects a new model in a conversation without messages.
async function offerModel(name) {
  await refresh();
  const isChat = [...$("model").options].some((it) => it.value === name);
  if (!isChat) return name + " is downloaded. It is not a model for chats.";
  if (shown.leaf) return name + " is downloaded. It is in the list of models.";
  $("model").value = name;
  $("model").onchange();
  return name + " is downloaded and selected.";
}
function pullFailure(name, error) {
  if (error.name === "AbortError") return "Cancelled. The next download of " + name + " continues it.";
  if (error instanceof Unreachable)
    return "The connection to the server was lost. The next download of " + name + " continues it.";
  return name + " was not downloaded: " + error.message;
}
async function pullModel(name) {
  pull = new AbortController();
  $("pull-bar").removeAttribute("value");
  showPullControls();
  showPull("Looking for " + name + ".");
  say("Downloading " + name + ".");
  let end;
  try {
    let last;
    for await (last of pullLines(await post("api/pull", { model: name }, pull.signal)))
      if (last.model === undefined) showPull(visible(last.status), last);
    end = await offerModel(last.model);
  } catch (error) {
    end = pullFailure(name, error);
  }
  pull = null;
  showPullControls();
  showPull(end);
  say(end);
}
$("pull-form").onsubmit = (event) => {
  event.preventDefault();
  const name = $("wanted").value.trim();
  if (name && !pull) pullModel(name);
};
$("pull-cancel").onclick = () => pull?.abort();
