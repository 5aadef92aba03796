// A message of the shown branch: an article that is created once and then updated.
const articles = new WeakMap();
const short = (count) => (count < 1024 ? String(count) : (count / 1024).toFixed(1).replace(/\.0$/, "") + "k");
function statsText(node) {
  const size = models.find((it) => it.id === node.model)?.max_model_len;
  const usage = node.usage;
  const out = [];
  if (node.model) out.push(node.model);
  if (node.speed) out.push(node.speed.toFixed(node.speed < 100 ? 1 : 0) + " tokens/s");
  if (node.first) out.push("first token after " + node.first.toFixed(2) + " s");
  if (usage) {
    out.push("context " + short(usage.total_tokens) + (size ? " of " + short(size) : ""));
    const reused = usage.prompt_tokens_details?.cached_tokens;
    if (reused) out.push(reused + " of " + usage.prompt_tokens + " prompt tokens reused");
  }
  if (node.dropped_messages) out.push(node.dropped_messages + " oldest messages dropped");
  if (node.seed !== undefined) out.push("seed\u00a0" + node.seed);
  if (node.exact) out.push(node.exact);
  const end = {
    stopped: "stopped",
    length: "length limit reached",
    half: runningNode(shown.id) === node.id ? "" : "interrupted",
    edited: "edited",
  }[node.end];
  if (end) out.push(end);
  return out.join(" · ");
}
function articleOf(node) {
  const place = el("article", { className: node.role });
  place.dataset.id = node.id;
  place.setAttribute("aria-label", node.role === "user" ? "You" : "Answer");
  Object.assign(place, {
    results: el("div"),
    attachments: attachmentsNode(node),
    thought: collapsible("Thoughts", ""),
    body: el("div", { className: "body", dir: "auto" }),
    calls: el("div"),
    wait: el("p", { className: "wait" }),
    note: el("p", { className: "note" }),
    buttons: el("span"),
    figures: el("span"),
  });
  place.buttons.style.display = "contents";
  place.foot = el("footer", {}, place.buttons, place.figures);
  place.append(
    place.results,
    place.attachments,
    place.thought,
    place.body,
    place.calls,
    place.wait,
    place.note,
    place.foot,
  );
  place.results.append(...(node.results || []).map(resultNode));
  articles.set(node, place);
  return place;
}
// Calls `make` if the key has changed since the last time.
function replaceIfChanged(parent, key, make) {
  if (parent.key === key) return;
  parent.key = key;
  parent.replaceChildren(...make());
}
function update(place, node) {
  const isRunning = runningNode(shown.id) === node.id;
  if (node.role === "user") {
    place.body.textContent = node.content;
    if (!place.edit) place.body.hidden = !node.content;
  } else if (heat.has(node.id) && !isRunning) {
    place.body.drawn = null;
    replaceIfChanged(place.body, node.tokens.length, () => [tokensNode(node)]);
  } else {
    if (place.body.key) {
      place.body.key = 0;
      place.body.replaceChildren();
    }
    // A base model continues a text, which is not Markdown.
    if (isBaseModel(node.model)) place.body.textContent = visible(node.content);
    else drawMarkdown(place.body, node.content);
  }
  place.thought.hidden = !node.thought;
  if (node.thought) {
    place.thought.firstChild.textContent =
      isRunning && !node.content
        ? "Thinking …"
        : "Thoughts" + (node.thinking ? " · " + node.thinking.toFixed(1) + " s" : "");
    if (place.thought.open || !isRunning) place.thought.lastChild.textContent = visible(node.thought);
  }
  replaceIfChanged(place.calls, callsKey(node), () => (node.calls ? callsNode(node) : []));
  place.wait.hidden = !isRunning || Boolean(node.content || node.thought || node.calls);
  place.wait.textContent =
    models.find((it) => it.id === node.model)?.loaded === false
      ? "Loading " + node.model + " into memory …"
      : "Reading the prompt …";
  const loops = node.usage?.completion_tokens_details?.repeated_tokens
    ? "The answer repeats itself. A repetition_penalty of 1.1 or a dry_multiplier of 0.8 may help."
    : "";
  place.note.textContent = node.failed || loops;
  place.note.hidden = !place.note.textContent;
  place.figures.textContent = node.role === "user" ? "" : statsText(node);
  const among = siblings(node);
  replaceIfChanged(
    place.buttons,
    [
      isAnswering(shown.id),
      among.length,
      among.indexOf(node),
      node.end,
      heat.has(node.id),
      node.content.length > 0,
      node.tokens?.length,
    ].join(),
    () => buttonsOf(node),
  );
}
