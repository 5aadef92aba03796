// The other buttons of the page, and its keys.
const systemTheme = matchMedia("(prefers-color-scheme: dark)");
// The chosen theme where the browser does not allow storage.
let unstoredTheme = null;
function applyTheme() {
  const chosen = readText("localStorage", "mlx-theme") ?? unstoredTheme;
  document.documentElement.classList.toggle("dark", chosen ? chosen === "dark" : systemTheme.matches);
}
systemTheme.onchange = applyTheme;
$("theme").onclick = () => {
  const isDark = document.documentElement.classList.contains("dark");
  const chosen = isDark ? "light" : "dark";
  if (!writeText("localStorage", "mlx-theme", chosen)) unstoredTheme = chosen;
  applyTheme();
};
const isCommand = (event) => event.ctrlKey || event.metaKey;
document.onkeydown = (event) => {
  const key = event.key.toLowerCase();
  if ($("finder").open && key !== "k") return;
  if (key === "escape" && $("nav").classList.contains("open")) openMenu(false);
  else if (key === "escape") {
    stopAnswer(shown.id);
    stopCalls(shown.id);
  }
  if (event.shiftKey && isCommand(event) && key === "o") {
    event.preventDefault();
    $("new").click();
  }
  if (!event.shiftKey && isCommand(event) && key === "k") {
    event.preventDefault();
    openSearch();
  }
};
$("new").onclick = async () => {
  await show(null);
  $("input").focus();
};
$("menu").onclick = () => openMenu(!$("nav").classList.contains("open"));
$("unlock").onsubmit = async (event) => {
  event.preventDefault();
  useKey($("key").value.trim());
  $("key").value = "";
  await refresh();
  if ($("locked").hidden) return $("input").focus();
  flashHint("The server does not accept this key.");
  $("key").focus();
};
$("export").onclick = async () => download("mlx-conversations.json", "application/json", await exportJson());
$("export-markdown").onclick = () => {
  if (!shown.leaf) return flashHint("This conversation is empty.");
  const name = shown.title
    .replace(/[^\p{L}\p{N}]+/gu, "-")
    .replace(/^-|-$/g, "")
    .slice(0, 60);
  download((name || "conversation") + ".md", "text/markdown", markdownOf(shown));
};
$("import").onclick = () => $("file").click();
$("file").onchange = () => {
  const file = $("file").files[0];
  if (file) importFile(file);
  $("file").value = "";
};
applyTheme();
