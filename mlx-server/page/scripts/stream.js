// The lines and events of a streamed answer, and their tokens.
async function* linesOf(reply) {
  let rest = "";
  for (const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader(); ;) {
    const { value, done } = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : new Unreachable();
    });
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    yield* lines;
  }
}
async function* events(reply) {
  for await (const line of linesOf(reply)) {
    if (line === "data: [DONE]") return;
    if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
  }
  throw new Unreachable();
}
// An event of completions in the form of chats.
function chatEvent(event) {
  const choice = event.choices?.[0];
  if (choice?.text === undefined) return event;
  const { tokens = [], token_logprobs: logprobs, top_logprobs: tops } = choice.logprobs ?? {};
  const content = tokens.map((token, place) => ({
    token,
    logprob: logprobs[place],
    top_logprobs: Object.entries(tops?.[place] ?? {})
      .map(([other, logprob]) => ({ token: other, logprob }))
      .sort((a, b) => b.logprob - a.logprob),
  }));
  return { ...event, choices: [{ ...choice, delta: { content: choice.text }, logprobs: { content } }] };
}
// A stored token. Its bytes are stored only if its text does not contain them.
const storedToken = ({ token, bytes, logprob }) => ({
  t: token,
  l: logprob,
  b: token.includes("\ufffd") ? bytes : undefined,
});
const bytesOf = (token) => token.b || [...new TextEncoder().encode(token.t)];
// Adds an event to the answer. Returns the number of its tokens.
function applyEvent(run, event) {
  const { node } = run;
  if (event.error) throw new Error(event.error.message);
  for (const name of ["seed", "usage", "dropped_messages"]) if (event[name] != null) node[name] = event[name];
  const choice = event.choices?.[0];
  if (!choice) return 0;
  const { content, reasoning_content: thought, tool_calls: calls } = choice.delta;
  const tokens = (choice.logprobs?.content || []).map((it) => ({
    ...storedToken(it),
    o: it.top_logprobs.map(storedToken),
  }));
  run.pendingTokens.push(...tokens);
  if (content) {
    // Tokens without text may be parts of the next character or markers. Only as many tokens as the text has bytes belong to it.
    const length = new TextEncoder().encode(content).length;
    let first = run.pendingTokens.length - tokens.length;
    let sum = run.pendingTokens.slice(first).reduce((all, it) => all + bytesOf(it).length, 0);
    while (sum < length && first > 0) {
      first -= 1;
      sum += bytesOf(run.pendingTokens[first]).length;
    }
    node.tokens.push(...run.pendingTokens.slice(first));
    node.content += content;
  }
  if (content || thought || calls?.length) run.pendingTokens = [];
  if (thought) {
    node.thought = (node.thought || "") + thought;
    node.thinking = (performance.now() - run.sent) / 1000;
  }
  for (const call of calls || []) {
    node.calls = node.calls || [];
    const at = (node.calls[call.index] = node.calls[call.index] || { id: call.id, name: "", arguments: "" });
    at.name += call.function?.name || "";
    at.arguments += call.function?.arguments || "";
  }
  if (choice.finish_reason) node.end = choice.finish_reason;
  return tokens.length || (content || thought || calls ? 1 : 0);
}
