// What an answer costs the browser while it grows: node speed.mjs PROGRAM CHROMIUM FOLDER. The answers are invented, 4 000 tokens of
// each kind at 500 tokens/s; printed is the time of the page's main thread for a token, in milliseconds, by parts of 500 tokens.
import { Trial, idle, pause, send } from "./support.mjs";

const TOKENS = 4000,
  PART = 500,
  RATE = 500;
const KINDS = {
  prose: (place) => (place % 60 === 59 ? "end.\n\n" : "word "),
  "one paragraph": () => "word ",
  "one block of code": (place) => (place === 0 ? "```rust\n" : place % 12 === 11 ? "}\n" : "let x = "),
  "one list": (place) => (place % 20 === 0 ? "\n- item " : "word "),
  "one table": (place) =>
    place === 0
      ? "| a | b |\n|---|---|\n"
      : place % 10 === 0
        ? "|\n| x "
        : place % 10 === 5
          ? "| y "
          : "word ",
};

const trial = await Trial.start(...process.argv.slice(2));
const parts = [];
let devtools;
const spent = async () =>
  (await devtools.send("Performance.getMetrics")).metrics.find((it) => it.name === "TaskDuration").value;
const event = (choices, more) =>
  "data: " + JSON.stringify({ object: "chat.completion.chunk", choices, ...more }) + "\n\n";
const logprob = (token) => ({ token, bytes: [...Buffer.from(token)], logprob: -0.1 });
async function invent(answer, textAt) {
  answer.writeHead(200, { "content-type": "text/event-stream" });
  const began = performance.now();
  let before = await spent();
  for (let place = 0; place < TOKENS; place += 1) {
    const token = textAt(place),
      logprobs = {
        content: [{ ...logprob(token), top_logprobs: Array.from({ length: 5 }, () => logprob(token)) }],
      };
    answer.write(
      event([{ index: 0, delta: { content: token }, logprobs, finish_reason: null }], { seed: 1 }),
    );
    const ahead = began + (1000 * place) / RATE - performance.now();
    if (ahead > 5) await pause(ahead);
    if (place % PART === PART - 1) {
      const now = await spent();
      parts.push((1000 * (now - before)) / PART);
      before = now;
    }
  }
  answer.end(event([{ index: 0, delta: {}, logprobs: null, finish_reason: "stop" }]) + "data: [DONE]\n\n");
}
try {
  await trial.serve();
  const page = await trial.open();
  page.setDefaultTimeout(60000);
  devtools = await trial.context.newCDPSession(page);
  await devtools.send("Performance.enable");
  for (const [name, textAt] of Object.entries(KINDS)) {
    parts.length = 0;
    trial.proxy.invented = (answer) => invent(answer, textAt);
    await page.click("#new");
    await send(page, name);
    await page.locator("article.assistant").waitFor();
    await idle(page);
    console.log(name.padEnd(20), parts.map((it) => it.toFixed(2)).join("  "));
  }
} finally {
  await trial.stop();
}
