// Presets: settings under a name. The defaults are the settings of new conversations. Both are stored in this browser.
const PRESETS_KEY = "mlx-presets",
  DEFAULTS_KEY = "mlx-defaults";
const textOrEmpty = (it) => (typeof it === "string" ? it : "");
// Storage of this browser may contain anything.
function settingsFrom(given) {
  const fields = Object.entries(Object(Object(given).fields)).filter(([, it]) => typeof it === "string");
  return { system: textOrEmpty(Object(given).system), fields: Object.fromEntries(fields) };
}
const defaultSettings = () => settingsFrom(readStored(DEFAULTS_KEY));
const presets = () => Object(readStored(PRESETS_KEY));
const currentSettings = () => settingsFrom(shown);
function showPresets(selected = "") {
  const option = (value, text) => el("option", { value, textContent: text });
  const names = Object.keys(presets()).sort();
  $("preset").replaceChildren(
    option("", names.length ? "choose" : "none"),
    ...names.map((it) => option(it, it)),
  );
  $("preset").value = names.includes(selected) ? selected : "";
  $("delete-preset").disabled = !$("preset").value;
}
$("preset").onchange = () => {
  const name = $("preset").value;
  $("delete-preset").disabled = !name;
  if (!name) return;
  const given = presets()[name];
  Object.assign(shown, settingsFrom(given));
  if (models.some((it) => it.id === given.model) && given.model !== $("model").value) {
    $("model").value = given.model;
    $("model").onchange();
  }
  onSettings();
  showFields();
  say("The settings are those of " + name + ".");
};
$("save-preset").onclick = () => {
  const name = prompt("Name of the preset", $("preset").value)?.trim().slice(0, 60);
  if (!name) return;
  writeStored(PRESETS_KEY, { ...presets(), [name]: { ...currentSettings(), model: $("model").value } });
  showPresets(name);
  flashHint("The preset " + name + " has these settings and this model.");
};
$("delete-preset").onclick = () => {
  const name = $("preset").value;
  if (!name || !confirm("Delete the preset “" + name + "”?")) return;
  const { [name]: _, ...others } = presets();
  writeStored(PRESETS_KEY, others);
  showPresets();
};
$("use-as-defaults").onclick = () => {
  writeStored(DEFAULTS_KEY, currentSettings());
  flashHint("New conversations begin with these settings.");
};
showPresets();
