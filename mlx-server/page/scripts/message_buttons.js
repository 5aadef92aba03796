// The buttons below a message.
// The arrows between the branches of a message.
function branchButtons(node) {
  const all = siblings(node);
  if (all.length < 2) return [];
  const at = all.indexOf(node);
  const go = (to) => {
    shown.leaf = deepest(to);
    save(shown);
    draw();
  };
  const back = button("‹", "Earlier branch", () => go(all[at - 1]));
  const on = button("›", "Later branch", () => go(all[at + 1]));
  back.disabled = at === 0;
  on.disabled = at === all.length - 1;
  return [back, at + 1 + "/" + all.length, on];
}
// Answers that can be continued: unfinished ones, and edited ones.
const UNFINISHED = ["half", "stopped", "length", "failed", "edited"];
function answerButtons(node) {
  const out = [];
  const branch = (wanted) => {
    followEnd();
    answer(shown, add(shown, "assistant", "", node.parent, { wanted, results: node.results }));
  };
  const retry = () => {
    followEnd();
    shown.leaf = node.id;
    answer(shown, node);
  };
  out.push(
    node.content || node.calls ? button("Regenerate", "", () => branch()) : button("Try again", "", retry),
  );
  if (node.seed !== undefined && !node.continued && node.content)
    out.push(button("Repeat", "Repeat with the same seed", () => branch(node.seed)));
  if (UNFINISHED.includes(node.end) && node.content && !node.calls) out.push(button("Continue", "", retry));
  const toggleTokens = () => {
    if (!heat.delete(node.id)) heat.add(node.id);
    draw();
  };
  if (node.tokens?.length) out.push(button(heat.has(node.id) ? "Text" : "Tokens", "", toggleTokens));
  return out;
}
function buttonsOf(node) {
  const out = branchButtons(node);
  if (isAnswering(shown.id)) return [];
  const kind = node.role === "user" ? "message" : "answer";
  if (node.content) out.push(copyButton("Copy this " + kind, () => node.content));
  if (node.role === "assistant") out.push(...answerButtons(node));
  if (node.role === "user" || (node.content && !node.calls))
    out.push(button("Edit", "Edit this " + kind, () => editor(node)));
  out.push(button("Delete", "Delete this " + kind, () => deleteMessage(shown, node)));
  return out;
}
