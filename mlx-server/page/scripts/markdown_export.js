// The shown branch of a conversation as Markdown.
const section = (title, ...texts) => ["## " + title, ...texts.filter(Boolean)].join("\n\n");
const folded = (title, text) => "<details><summary>" + title + "</summary>\n\n" + text + "\n\n</details>";
function callText({ name, arguments: given }) {
  return "Tool call " + name + ":\n" + fenced(pretty(given), "json");
}
function markdownOfMessage(node) {
  const results = (node.results ?? []).map((it) =>
    fileText({ name: "result of " + it.name, text: it.content }),
  );
  const pictures = (node.pictures ?? []).map((it) => "*(image " + it.name + ")*");
  if (node.role === "user") return section("You", ...pictures, textWithFiles(node));
  const thought = node.thought ? folded("Thoughts", fenced(node.thought, "")) : "";
  const calls = (node.calls ?? []).filter(Boolean).map(callText);
  return section(node.model || "Answer", ...results, thought, node.content, ...calls);
}
function markdownOf(talk) {
  const system = talk.system ? [section("System prompt", talk.system)] : [];
  return ["# " + talk.title, ...system, ...path(talk, talk.leaf).map(markdownOfMessage)].join("\n\n") + "\n";
}
