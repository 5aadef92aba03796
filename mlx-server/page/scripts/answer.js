// Answers: asking for them, receiving them, and branches from a token.
// A higher speed, in tokens/s, is that of tokens which came together.
const MAX_SPEED = 5000;
async function receive(run) {
  const { talk, node } = run;
  if (!models.length) await refresh();
  if (!abilities.has(node.model)) await readAbilities(node.model);
  const path = isBaseModel(node.model) ? "v1/completions" : "v1/chat/completions";
  const omitted = omissionsOf(talk, node);
  if (omitted) flashHint(node.model + " has no chat template and does not get: " + omitted + ".");
  const reply = await post(path, bodyFor(talk, node), run.abort.signal);
  node.exact = reply.headers.get("x-exactness");
  let first = 0;
  let count = 0;
  let atFirst = 0;
  for await (const event of events(reply)) {
    count += applyEvent(run, chatEvent(event));
    const now = performance.now();
    if (count && !first) {
      first = now;
      atFirst = count;
      node.first = (first - run.sent) / 1000;
      setTimeout(refresh);
    }
    // The tokens of a call can come in one piece, whose time says nothing about their speed.
    const speed = (count - atFirst) / ((now - first) / 1000);
    if (speed > 0 && speed < MAX_SPEED && event.choices?.length) node.speed = speed;
    schedule(run);
    tellText(run);
    saveSoon(run);
  }
}
// Stores a growing answer, also if nothing more of it comes. A long one takes time: use at most 5 % of it.
const SAVE_INTERVAL = 400;
function saveSoon(run) {
  if (run.willSave) return;
  run.willSave = true;
  setTimeout(async () => {
    if (runs.get(run.talk.id) !== run) return;
    const began = performance.now();
    await save(run.talk, run.node);
    run.saveInterval = Math.max(SAVE_INTERVAL, 20 * (performance.now() - began));
    run.willSave = false;
  }, run.saveInterval ?? SAVE_INTERVAL);
}
async function answer(talk, node) {
  if (runs.has(talk.id)) return;
  const run = { talk, node, abort: new AbortController(), sent: performance.now(), pendingTokens: [] };
  runs.set(talk.id, run);
  talk.model = talk === shown ? $("model").value : talk.model;
  // An answer without text starts over, including its thoughts. A seed cannot reproduce a continued answer.
  Object.assign(
    node,
    { model: talk.model, end: "half", failed: undefined, speed: undefined, usage: undefined },
    node.content ? { continued: true } : { thought: undefined, calls: undefined, first: undefined },
  );
  node.tokens = (node.content && node.tokens) || [];
  if (talk === shown) draw();
  say("The model answers.");
  await save(talk, ...(talk.nodes[node.parent] ? [talk.nodes[node.parent]] : []), node);
  drawList();
  try {
    await receive(run);
    say("The answer is complete.");
  } catch (error) {
    if (error.name === "AbortError") {
      node.end = "stopped";
      say("Stopped.");
    } else if (error instanceof Unreachable) onUnreachable(talk, node);
    else {
      node.end = "failed";
      node.failed = String(error.message);
      say(node.failed);
    }
  }
  runs.delete(talk.id);
  // Another tab may have deleted the message.
  if (talk.nodes[node.id]) await save(talk, node);
  else await adoptRecord(talk);
  if (talk === shown) draw();
  drawList();
  if (node.end === "tool_calls" && talk.nodes[node.id]) settleCalls(talk, node);
}
function send(text, attached) {
  const names = [...attached.pictures, ...attached.files].map((it) => it.name);
  if (!shown.leaf) shown.title = (text.trim() || names[0]).slice(0, 60);
  const user = add(shown, "user", text, shown.leaf, attached);
  followEnd();
  answer(shown, add(shown, "assistant", "", user.id));
}
const textOf = (tokens) =>
  new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(tokens.flatMap(bytesOf)));
function branchAt(node, index, other) {
  let before;
  let text;
  try {
    before = textOf(node.tokens.slice(0, index));
    text = textOf([...node.tokens.slice(0, index), other]);
  } catch {
    return say("This token ends within a character; branch at the next one.");
  }
  if (!node.content.startsWith(before))
    return say("The text before this token differs from the answer, so it cannot be continued.");
  const branch = add(shown, "assistant", text, node.parent, {
    results: node.results,
    thought: node.thought,
    thinking: node.thinking,
  });
  branch.tokens = [...node.tokens.slice(0, index), { ...other, o: node.tokens[index].o }];
  heat.add(branch.id);
  answer(shown, branch);
}
