// The shown branch, and its position on the screen.
function draw() {
  const talk = $("talk");
  const line = path(shown, shown.leaf);
  const active = document.activeElement;
  const held = active.closest("article");
  const name = active.textContent;
  const wanted = line.map((node) => articles.get(node) ?? articleOf(node));
  line.forEach((node, index) => update(wanted[index], node));
  if (!wanted.length) replaceIfChanged(talk, emptyKey(), () => [emptyNode()]);
  else {
    talk.key = undefined;
    // Unchanged articles are not touched, so that they keep focus, selection and position.
    let same = 0;
    while (same < wanted.length && talk.childNodes[same] === wanted[same]) same += 1;
    while (talk.childNodes.length > same) talk.lastChild.remove();
    for (const it of wanted.slice(same)) talk.append(it);
  }
  const isRunning = isAnswering(shown.id);
  const hadButton = active === $("send") || active === $("stop");
  $("stop").hidden = !isRunning;
  $("send").hidden = isRunning;
  // A redrawn button keeps the focus. If it is gone, the next useful element gets it.
  if (held && !active.isConnected) {
    const buttons = [...(held.isConnected ? held : (wanted.at(-1) ?? talk)).querySelectorAll("button")];
    (isRunning ? $("stop") : (buttons.find((it) => it.textContent === name && !it.disabled) ?? talk)).focus({
      preventScroll: true,
    });
  } else if (hadButton && active.hidden) $("input").focus();
  document.title = (shown.leaf ? shown.title + " · " : "") + "mlx";
  scrollToEnd();
}
// Changes whenever the empty conversation looks different.
function emptyKey() {
  const model = $("model").value;
  return ["empty", model, isBaseModel(model), isLoaded(model), loading.has(model)].join();
}
function emptyNode() {
  const model = $("model").value;
  const isBase = isBaseModel(model);
  const title = isBase ? "Continue a text with " + model : model ? "Chat with " + model : "Chat";
  const tokens =
    "Click Tokens below an answer to see the probability of each token. From any of them, the answer can continue with an alternative.";
  const advice = isBase ? "This model has no chat template. It continues the text that you send." : tokens;
  const stay = isLoaded(model)
    ? button("Unload from memory", "", () => unloadModel(model))
    : button(loading.has(model) ? "Loading …" : "Load into memory", "", () => loadModel(model));
  const texts = [el("h2", { textContent: title }), el("p", { textContent: advice })];
  return el("div", { id: "empty" }, texts, model ? stay : []);
}
// Draws an answer at most once per frame, whatever its token rate.
function schedule(run) {
  if (run.frame || run.talk !== shown) return;
  run.frame = requestAnimationFrame(() => {
    run.frame = 0;
    if (run.talk === shown && runs.get(shown.id) === run) {
      update(articles.get(run.node), run.node);
      scrollToEnd();
    }
  });
}
// The end stays in view until the user scrolls away.
let followsEnd = true;
function scrollToEnd() {
  if (followsEnd) $("talk").scrollTop = $("talk").scrollHeight;
  $("jump").hidden = followsEnd;
}
function followEnd() {
  followsEnd = true;
}
function stopFollowing() {
  followsEnd = false;
}
$("talk").onscroll = () => {
  const it = $("talk");
  followsEnd = it.scrollHeight - it.scrollTop - it.clientHeight < 60;
  $("jump").hidden = followsEnd;
};
window.onresize = scrollToEnd;
$("jump").onclick = () => {
  followEnd();
  scrollToEnd();
  $("input").focus();
};
