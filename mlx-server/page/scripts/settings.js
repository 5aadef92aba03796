// The settings of a conversation: a system prompt, and the request fields. The common ones are shown first, then all others in the server's
// OpenAPI description, except those that the page sets itself.
const COMMON_FIELDS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed"];
const PAGE_FIELDS =
  "model messages prompt stream stream_options n logprobs top_logprobs return_token_ids max_completion_tokens".split(
    " ",
  );
const controls = new Map();
// The descriptions of the fields.
const schemas = new Map(COMMON_FIELDS.map((name) => [name, { type: "number" }]));
const typesOf = (name) => [schemas.get(name)?.type].flat();
function choicesOf(name) {
  if (typesOf(name).includes("boolean")) return ["true", "false"];
  return /^\^\(([\w|-]+)\)\$$/.exec(schemas.get(name).pattern || "")?.[1].split("|");
}
function controlFor(name) {
  const choices = choicesOf(name);
  const option = (value) => el("option", { value, textContent: value || "default" });
  if (choices) return el("select", {}, ["", ...choices].map(option));
  if (isNumberField(name)) return el("input", { inputMode: "decimal", placeholder: "default" });
  const placeholder = typesOf(name).includes("string") ? "default" : "JSON";
  return el("textarea", { rows: 1, placeholder, spellcheck: false });
}
function fieldNode(name) {
  const control = Object.assign(controlFor(name), { id: "field-" + name });
  const problem = el("p", { id: "problem-" + name, hidden: true });
  control.setAttribute("aria-describedby", problem.id);
  control.oninput = () => {
    shown.fields[name] = control.value;
    onSettings();
  };
  // While a number is typed, it may be out of range.
  control.onchange = () => showProblem(name);
  controls.set(name, control);
  const className = control.tagName === "TEXTAREA" ? "wide" : "";
  return el(
    "div",
    { className: "field" },
    el("label", { htmlFor: control.id, className }, name, control),
    problem,
  );
}
function onSettings() {
  countFields();
  if (shown.isStored) save(shown);
}
function showFields() {
  $("system").value = shown.system;
  for (const [name, control] of controls) {
    control.value = shown.fields[name] ?? "";
    showProblem(name);
  }
  showSampling();
  countFields();
}
function showSampling() {
  for (const [name, it] of Object.entries(samplingOf($("model").value)))
    if (controls.has(name)) controls.get(name).placeholder = it.value + " " + it.source;
}
function countFields() {
  const count = Object.values(shown.fields).filter((it) => it.trim()).length + (shown.system ? 1 : 0);
  $("settings").textContent = "Conversation settings" + (count ? " · " + count : "");
  $("reset").disabled = !count;
}
async function readFields() {
  const description = await (await request("openapi.json")).json();
  const target = (reference) =>
    reference
      .slice(2)
      .split("/")
      .reduce((at, key) => at[key], description);
  const resolved = (it) => (it?.$ref ? target(it.$ref) : it);
  const { content } = description.paths["/v1/chat/completions"].post.requestBody;
  const { properties } = resolved(content["application/json"].schema);
  const isOffered = (name) =>
    !PAGE_FIELDS.includes(name) &&
    !properties[name].enum &&
    !properties[name].description?.startsWith("Not used");
  for (const name of Object.keys(properties).filter(isOffered))
    schemas.set(name, { ...resolved(properties[name]), ...properties[name] });
  const others = [...schemas.keys()].filter((name) => !COMMON_FIELDS.includes(name));
  $("advanced").replaceChildren(...others.map(fieldNode));
  for (const [name, control] of controls) control.parentNode.title = schemas.get(name).description || "";
  showFields();
}
$("system").oninput = () => {
  shown.system = $("system").value;
  onSettings();
};
$("reset").onclick = () => {
  Object.assign(shown, { fields: {}, system: "" });
  onSettings();
  showFields();
};
$("fields").append(...COMMON_FIELDS.map(fieldNode));
