// Tool calls and their results.
function collapsible(title, text) {
  return el("details", {}, el("summary", { textContent: title }), el("pre", { textContent: text }));
}
const pretty = (text) => {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
};
// If the answer waits for their results, each has a field for its result.
function callsNode(node) {
  const calls = node.calls.filter(Boolean);
  const waits = node.end === "tool_calls" && shown.leaf === node.id && !isAnswering(shown.id);
  const fields = calls.map((it) => {
    const field = el("textarea", { rows: 2, placeholder: "Result" });
    field.setAttribute("aria-label", "Result of " + it.name);
    return field;
  });
  const out = calls.map((it, place) =>
    el(
      "div",
      { className: "call" },
      el(
        "details",
        { open: waits },
        el("summary", { textContent: "Tool call: " + it.name }),
        el("pre", { textContent: visible(pretty(it.arguments)), tabIndex: 0 }),
      ),
      waits ? fields[place] : [],
    ),
  );
  const go = () => {
    followEnd();
    answer(
      shown,
      add(shown, "assistant", "", node.id, {
        results: calls.map((it, place) => ({ id: it.id, name: it.name, content: fields[place].value })),
      }),
    );
  };
  return waits ? [...out, button("Send results", "", go)] : out;
}
