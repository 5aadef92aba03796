// The search in the titles and messages of all conversations.
const MAX_FOUND = 60,
  AROUND = 60;
// The texts of all conversations, read when the search opens. Stored tokens are many times larger, so one message is read at a time.
let searchable = [];
async function readSearchable() {
  if (!base) return;
  const titles = new Map((await result(records("talks").getAll())).map((it) => [it.id, it]));
  const out = [...titles.values()].map((it) => ({ talk: it, node: null, text: it.title, at: it.updated }));
  const cursor = records("nodes").openCursor();
  await new Promise((done, fail) => {
    cursor.onerror = () => fail(cursor.error);
    cursor.onsuccess = () => {
      if (!cursor.result) return done();
      const { id, talk, role, content, files = [], at } = cursor.result.value;
      const text = [...files.map((it) => it.name + "\n" + it.text), content].join("\n");
      if (titles.has(talk)) out.push({ talk: titles.get(talk), node: id, role, text, at });
      cursor.result.continue();
    };
  });
  searchable = out.map((it) => ({ ...it, lower: it.text.toLowerCase() })).sort((a, b) => b.at - a.at);
}
// Returns the texts that contain all words.
function search(sought) {
  const terms = sought.toLowerCase().split(/\s+/).filter(Boolean);
  return terms.length ? searchable.filter((it) => terms.every((term) => it.lower.includes(term))) : [];
}
// The text around the first match, with the match marked.
function excerpt({ text, lower }, sought) {
  const term = sought.toLowerCase().split(/\s+/).find(Boolean);
  // Lower case may have another length; then nothing is marked.
  const at = lower.length === text.length ? lower.indexOf(term) : 0;
  const end = lower.length === text.length ? at + term.length : 0;
  const from = Math.max(0, at - AROUND);
  const before = (from ? "…" : "") + visible(text.slice(from, at));
  const after = visible(text.slice(end, end + 2 * AROUND)) + (text.length > end + 2 * AROUND ? "…" : "");
  return [before, el("mark", { textContent: visible(text.slice(at, end)) }), after];
}
function foundItem(it, sought) {
  const who = it.node ? (it.role === "user" ? "You" : "Answer") + " · " : "";
  const about = el("small", {
    textContent: who + it.talk.title + " · " + new Date(it.at).toLocaleDateString(),
  });
  const open = el(
    "button",
    { type: "button", className: "plain", onclick: () => showFound(it) },
    about,
    ...excerpt(it, sought),
  );
  return el("li", {}, open);
}
function drawFound() {
  const sought = $("sought").value;
  const all = search(sought);
  $("found").replaceChildren(...all.slice(0, MAX_FOUND).map((it) => foundItem(it, sought)));
  const more = all.length > MAX_FOUND ? "; the newest " + MAX_FOUND + " are shown" : "";
  $("found-count").textContent = sought.trim()
    ? plural(all.length, "match").replace("matchs", "matches") + more
    : "";
}
// Shows a found message, on its branch.
async function showFound({ talk, node }) {
  $("finder").close();
  await show(talk.id);
  const found = node && shown.nodes[node];
  if (!found) return;
  if (!path(shown, shown.leaf).includes(found)) shown.leaf = deepest(found);
  stopFollowing();
  draw();
  const place = articles.get(found);
  for (const it of document.querySelectorAll(".found")) it.classList.remove("found");
  place.classList.add("found");
  place.scrollIntoView({ block: "center" });
  place.tabIndex = -1;
  place.focus({ preventScroll: true });
}
async function openSearch() {
  openMenu(false);
  if (!$("finder").open) $("finder").showModal();
  $("sought").select();
  await readSearchable();
  drawFound();
}
$("search").onclick = openSearch;
$("sought").oninput = drawFound;
$("sought").onkeydown = (event) => {
  if (event.key !== "Enter" && event.key !== "Escape") return;
  event.preventDefault();
  // Chromium's own Escape clears the field first.
  if (event.key === "Escape") $("finder").close();
  else $("found").querySelector("button")?.click();
};
