// Editing a message. The edited one is a new branch: a message gets a new answer, an answer is stored.
function storeEdited(node, field) {
  followEnd();
  if (node.role === "user") {
    const user = add(shown, "user", field.value, node.parent, field.attached());
    return answer(shown, add(shown, "assistant", "", user.id));
  }
  const { model, results, thought, thinking } = node;
  const edited = add(shown, "assistant", field.value, node.parent, {
    model,
    results,
    thought,
    thinking,
    end: "edited",
  });
  save(shown, edited);
  draw();
}
function editor(node) {
  const place = articles.get(node);
  const isUser = node.role === "user";
  const field = withAttachments(el("textarea", { value: node.content, rows: isUser ? 4 : 10 }), node);
  if (!isUser) field.attach = field.onpaste = null;
  const hidden = [place.attachments, place.body, place.foot];
  const close = () => {
    place.edit.remove();
    place.edit = null;
    for (const it of hidden) it.hidden = false;
    [...place.buttons.children].find((it) => it.textContent === "Edit")?.focus();
  };
  const go = () => {
    if (isAnswering(shown.id) || !field.checkRead() || !field.isFilled()) return;
    if (isUser && !checkNumbers()) return;
    close();
    storeEdited(node, field);
  };
  field.setAttribute("aria-label", isUser ? "Message to edit" : "Answer to edit");
  field.onkeydown = (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    close();
  };
  place.edit?.remove();
  const store = button(isUser ? "Send as a branch" : "Store as a branch", "", go);
  place.edit = el("div", { className: "edit" }, field.strip, field, store, " ", button("Cancel", "", close));
  for (const it of hidden) it.hidden = true;
  place.append(place.edit);
  field.focus();
}
