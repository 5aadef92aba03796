// Requests: a conversation as messages of a chat, or as one text for a model without a chat template.
// A block of code with more backticks than any line of it begins with.
function fenced(text, kind) {
  const longest = (text.match(/`{3,}/g) ?? []).reduce((all, it) => Math.max(all, it.length), 2);
  const fence = "`".repeat(longest + 1);
  return fence + kind + "\n" + text.replace(/\n?$/, "\n") + fence;
}
// A file precedes its message.
function fileText({ name, text }) {
  const kind = /\.(\w{1,12})$/.exec(name)?.[1].toLowerCase() ?? "";
  return "File " + name + ":\n" + fenced(text, kind === "pdf" ? "" : kind);
}
const textWithFiles = (node) =>
  [...(node.files ?? []).map(fileText), ...(node.content ? [node.content] : [])].join("\n\n");
function messageOf(node) {
  const callOf = (it) => ({
    id: it.id,
    type: "function",
    function: { name: it.name, arguments: it.arguments },
  });
  const calls = (node.calls || []).filter(Boolean).map(callOf);
  const pictures = (node.pictures || []).map((it) => ({ type: "image_url", image_url: { url: it.url } }));
  const text = textWithFiles(node);
  const content = pictures.length
    ? [...pictures, ...(text ? [{ type: "text", text }] : [])]
    : text || (calls.length ? null : "");
  return {
    role: node.role,
    content,
    reasoning_content: node.thought || undefined,
    tool_calls: calls.length ? calls : undefined,
  };
}
function resultMessage(call, results, model) {
  const { content, pictures = [] } = results?.find((it) => it.id === call.id) ?? call.result ?? {};
  const text = content || (pictures.length ? "" : "The user gave no result.");
  const urls = abilities.get(model)?.vision ? pictures.map((it) => it.url) : [];
  const omitted = pictures.length - urls.length;
  const whole = omitted ? [text, "[" + plural(omitted, "picture") + " omitted]"].filter(Boolean).join("\n") : text;
  const parts = [
    ...(whole ? [{ type: "text", text: whole }] : []),
    ...urls.map((url) => ({ type: "image_url", image_url: { url } })),
  ];
  return { role: "tool", tool_call_id: call.id, content: urls.length ? parts : whole };
}
function messagesFor(talk, node) {
  const out = talk.system ? [{ role: "system", content: talk.system }] : [];
  const line = [...path(talk, node.parent), node];
  line.forEach((it, place) => {
    for (const call of line[place - 1]?.calls?.filter(Boolean) || [])
      out.push(resultMessage(call, it.results, node.model));
    // If the last message is the assistant's, the server continues it.
    if (it !== node || node.content) out.push(messageOf(it));
  });
  return out;
}
// The text that a base model continues.
const promptFor = (talk, node) => [...path(talk, node.parent), node].map(textWithFiles).join("");
const isBaseModel = (model) => abilities.get(model)?.chat === false;
// Fields of chats that completions do not have.
const CHAT_ONLY = [
  "tools",
  "tool_choice",
  "parallel_tool_calls",
  "reasoning_effort",
  "context_policy",
  "chat_template_kwargs",
];
// Names what a base model does not get, or returns "".
function omissionsOf(talk, node) {
  if (!isBaseModel(node.model)) return "";
  const hasPictures = path(talk, node.parent).some((it) => it.pictures?.length);
  return [
    ...(talk.system ? ["the system prompt"] : []),
    ...(hasPictures ? ["images"] : []),
    ...CHAT_ONLY.filter((name) => talk.fields[name]?.trim()),
  ].join(", ");
}
function bodyFor(talk, node) {
  const isText = isBaseModel(node.model);
  const body = {
    model: node.model || undefined,
    ...(isText ? { prompt: promptFor(talk, node) } : { messages: messagesFor(talk, node) }),
    stream: true,
    stream_options: { include_usage: true },
    ...(isText ? { logprobs: 5 } : { logprobs: true, top_logprobs: 5 }),
  };
  for (const [name, it] of Object.entries(samplingOf(node.model)))
    if (it.source === "default") body[name] = it.value;
  for (const [name, given] of Object.entries(talk.fields))
    if (given.trim() && !PAGE_FIELDS.includes(name) && !(isText && CHAT_ONLY.includes(name)))
      body[name] = valueOf(given, name);
  if (!isText) body.tools = withServerTools(body.tools, node.model);
  if (node.wanted !== undefined) body.seed = node.wanted;
  return body;
}
// The server reports each model's sampling defaults for chats. The API has other defaults, so the page sends these explicitly.
const samplingOf = (model) => (models.find((it) => it.id === model) ?? models[0])?.chat_sampling ?? {};
// Values that are not JSON are sent as strings. The server names fields with invalid values.
function valueOf(given, name) {
  const number = isNumberField(name) ? numberOf(name, given) : NaN;
  if (Number.isFinite(number)) return number;
  try {
    return JSON.parse(given);
  } catch {
    return given.trim();
  }
}
