// The list of conversations, and the menu that contains it.
async function rename(it) {
  const title = prompt("Title", it.title)?.trim();
  const talk = runs.get(it.id)?.talk ?? (it.id === shown.id ? shown : await load(it.id));
  if (!title || !talk) return;
  talk.title = title.slice(0, 200);
  await save(talk);
  draw();
  drawList();
}
async function remove(it) {
  if (!confirm("Delete “" + it.title + "”?")) return;
  await deleteTalk(it.id);
  closeDeleted(it.id);
  drawList();
}
function listItem(it) {
  const open = el("button", {
    type: "button",
    className: "plain",
    textContent: it.title + (isAnswering(it.id) ? " …" : ""),
    title: it.title,
    onclick: () => show(it.id),
  });
  const buttons = [
    button("✎", "Rename " + it.title, () => rename(it)),
    button("×", "Delete " + it.title, () => remove(it)),
  ];
  for (const small of buttons) small.classList.add("plain");
  if (it.id === shown.id) open.setAttribute("aria-current", "true");
  return el("li", { className: it.id === shown.id ? "now" : "" }, open, buttons);
}
async function drawList() {
  if (!base) return;
  const all = (await result(records("talks").getAll())).sort((a, b) => b.updated - a.updated);
  // Tabs that receive answers save often. An item that is drawn again could lose a click.
  const key = JSON.stringify([shown?.id, all.map((it) => [it.id, it.title, isAnswering(it.id)])]);
  replaceIfChanged($("list"), key, () => all.map(listItem));
}
async function show(id) {
  shown = runs.get(id)?.talk ?? (await load(id)) ?? emptyTalk();
  writeText("sessionStorage", "mlx-talk", shown.id);
  showFields();
  if (models.some((it) => it.id === shown.model)) $("model").value = shown.model;
  checkModel();
  openMenu(false);
  followEnd();
  draw();
  drawList();
}
function openMenu(open) {
  const hadFocus = $("nav").contains(document.activeElement);
  $("nav").classList.toggle("open", open);
  $("menu").setAttribute("aria-expanded", String(open));
  // On a narrow screen the menu covers the conversation.
  for (const id of ["talk", "ask"]) $(id).inert = open;
  if (open) $("new").focus();
  else if (hadFocus && getComputedStyle($("menu")).display !== "none") $("menu").focus();
}
// On a wide screen the menu covers nothing, so the conversation must not stay inert.
const narrowScreen = matchMedia("(max-width: 700px)");
narrowScreen.onchange = () => {
  if (!narrowScreen.matches) openMenu(false);
};
