// Servers, a proxy before them, and a browser, for the test of the page.
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { createServer, request } from "node:http";
import { createRequire } from "node:module";
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
/** The folder of the project. */
export const root = join(here, "../..");
const ARGUMENTS = [
  ..."--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync".split(
    " ",
  ),
  // A microphone that plays a file, and is allowed without a question.
  "--use-fake-device-for-media-stream",
  "--use-fake-ui-for-media-stream",
  "--use-file-for-fake-audio-capture=" + join(root, "tests/golden/audio/tone.wav"),
];

/** The events of a held stream: of the answer that counts to twenty, it has the words up to "eleven". */
const HELD = 10;

/** The folder of a tiny model that sees, with pictures. */
export const seen = join(root, "tests/golden/pictures/mistral3-f32");
export const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

/** Starts the server on a free port; gives the process with its `port`. */
async function serve(program, more, variables) {
  const env = { ...process.env, ...variables };
  const child = spawn(program, ["--port", "0", ...more], { stdio: ["ignore", "ignore", "pipe"], env });
  let log = "";
  await new Promise((done, failed) => {
    child.stderr.setEncoding("utf8").on("data", (piece) => {
      if (child.port) return;
      log += piece;
      child.port = Number(/"address":"[^"]*:(\d+)"/.exec(log)?.[1] ?? 0);
      if (child.port) done();
    });
    child.once("exit", () => failed(new Error("the server did not start: " + log)));
  });
  return child;
}

/** Passes requests on to the server that runs now. `pace` is the time before each event of a stream, in milliseconds; `cut` ends the
 * next stream behind so many events; `hold()` stops the next one in the middle until `release()`. `bodies` are the chats that were asked
 * for, `audio` the forms with audio, `events` those of the last stream. `invented` answers chats in place of the server. With `isMute`,
 * audio has no answer. */
async function startProxy() {
  const proxy = { pace: 0, cut: 0, port: 0, bodies: [], audio: [], events: [], invented: null, isMute: false };
  let next = null;
  proxy.hold = () => {
    next = new Promise((done) => {
      proxy.release = done;
    });
  };
  const pass = async (reply, answer) => {
    const held = next;
    next = null;
    let rest = "",
      sent = 0;
    proxy.events = [];
    for await (const piece of reply.setEncoding("utf8")) {
      const events = (rest + piece).split(/(?<=\n\n)/);
      rest = events.at(-1).endsWith("\n\n") ? "" : events.pop();
      for (const event of events) {
        proxy.events.push(event);
        if (proxy.pace) await pause(proxy.pace);
        answer.write(event);
        sent += 1;
        if (sent === HELD) await held;
        if (proxy.cut && sent >= proxy.cut) {
          proxy.cut = 0;
          reply.destroy();
          answer.destroy();
          return;
        }
      }
    }
    answer.end(rest);
  };
  const server = createServer((asked, answer) => {
    if (proxy.invented && asked.url.endsWith("/v1/chat/completions")) {
      asked.resume();
      proxy.invented(answer);
      return;
    }
    const isAudio = asked.url.startsWith("/v1/audio/");
    if (isAudio && proxy.isMute) {
      asked.resume();
      return;
    }
    const on = request(
      { port: proxy.port, host: "127.0.0.1", method: asked.method, path: asked.url, headers: asked.headers },
      (reply) => {
        answer.writeHead(reply.statusCode, reply.headers);
        answer.on("close", () => reply.destroy());
        if (!reply.headers["content-type"]?.startsWith("text/event-stream")) {
          reply.pipe(answer);
          return;
        }
        pass(reply, answer).catch(() => answer.destroy());
      },
    );
    on.on("error", () => answer.destroy());
    const body = [];
    asked.on("data", (piece) => body.push(piece));
    asked.on("end", () => {
      if (/\/v1\/(chat\/)?completions$/.test(asked.url)) proxy.bodies.push(JSON.parse(Buffer.concat(body)));
      if (isAudio) proxy.audio.push(Buffer.concat(body));
    });
    asked.pipe(on);
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  proxy.origin = `http://127.0.0.1:${server.address().port}`;
  proxy.close = () => {
    server.closeAllConnections();
    server.close();
  };
  return proxy;
}

/** What the steps of the test share. */
export class Trial {
  /** Starts a proxy, and a browser with the packages of `folder`. */
  static async start(program, executablePath, folder) {
    const trial = new Trial(),
      require = createRequire(folder + "/");
    Object.assign(trial, {
      program,
      folder,
      foreign: [],
      faults: [],
      refusals: [],
      variables: {},
      files: mkdtempSync(join(tmpdir(), "mlx-page-")),
    });
    trial.axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
    trial.proxy = await startProxy();
    trial.browser = await require("playwright-core").chromium.launch({ executablePath, args: ARGUMENTS });
    trial.context = await trial.browser.newContext({
      viewport: { width: 1200, height: 800 },
      acceptDownloads: true,
    });
    trial.context.on("request", (it) => {
      if (!it.url().startsWith(trial.proxy.origin) && !it.url().startsWith("blob:"))
        trial.foreign.push(it.url());
    });
    return trial;
  }

  /** The flags of four models: one that follows script.json, and three with random weights. One of them sees, one has no chat template. */
  models() {
    const scripted = join(this.files, "model");
    const made = spawnSync(
      "python3",
      [join(root, "tests/clients/scripted_model.py"), scripted, join(here, "script.json")],
      { encoding: "utf8" },
    );
    if (made.status !== 0) throw new Error("the scripted model was not made: " + (made.error ?? made.stderr));
    const random = join(root, "tests/golden/models/llama-f32"),
      base = join(this.files, "base");
    cpSync(random, base, { recursive: true });
    const config = join(base, "tokenizer_config.json"),
      { chat_template: _, ...others } = JSON.parse(readFileSync(config, "utf8"));
    writeFileSync(config, JSON.stringify(others));
    return [
      "-m",
      "scripted=" + scripted,
      "-m",
      "random=" + random,
      "-m",
      "seeing=" + seen,
      "-m",
      "base=" + base,
    ];
  }

  /** The flags of MCP servers: one of tests/mcp/server.py, which records its calls, and one that dies. */
  servers() {
    const file = join(this.files, "mcp.json"),
      script = join(root, "tests/mcp/server.py");
    this.calls = join(this.files, "calls");
    const entry = (...flags) => ({ command: "python3", args: [script, ...flags] });
    const mcpServers = { sea: entry("--record", this.calls), dead: entry("--start", "die") };
    writeFileSync(file, JSON.stringify({ mcpServers }));
    return ["--mcp", file, "--api-key", "k"];
  }

  /** The flags of a speech recognizer with random weights. */
  recognizer() {
    return ["-m", "listening=" + join(root, "tests/golden/speech/whisper-f32")];
  }

  /** The flags of a file with one profile. */
  profiles() {
    const file = join(this.files, "profiles.toml");
    writeFileSync(file, '[[profile]]\nname = "sailor"\nmodel = "scripted"\nsystem = "Be brief."\ntemperature = 0\n');
    return ["--profiles", file];
  }

  /** A file of so many zeros or letters; the browser reads it from the disk, which takes less time than a buffer. */
  large(name, size, byte = 0) {
    const path = join(this.files, name);
    writeFileSync(path, Buffer.alloc(size, byte));
    return path;
  }

  /** Starts a server with these flags in place of the one before. */
  async serve(...more) {
    await this.end();
    this.server = await serve(this.program, more, this.variables);
    this.proxy.port = this.server.port;
  }

  /** Kills the server. */
  async end() {
    if (!this.server) return;
    this.server.kill("SIGKILL");
    await once(this.server, "exit");
    this.server = null;
  }

  /** A new tab on the page. */
  async open(context = this.context) {
    const page = await context.newPage();
    page.setDefaultTimeout(60000);
    page.on("pageerror", (error) => this.faults.push(String(error)));
    page.on("console", (it) => {
      if (/Content Security Policy|Trusted/.test(it.text())) this.refusals.push(it.text());
    });
    await page.goto(this.proxy.origin);
    await page.locator("#model option").first().waitFor({ state: "attached" });
    return page;
  }

  async stop() {
    await this.browser.close();
    await this.end();
    this.proxy.close();
    rmSync(this.files, { recursive: true, force: true });
  }
}

/** The text of the last answer. */
export const last = (page) => page.locator("article.assistant .body").last();

/** Waits until nothing is answered and the last article can be regenerated. */
export async function idle(page) {
  await page.locator("#send").waitFor();
  await page
    .locator("article.assistant footer button", { hasText: /Regenerate|Try again/ })
    .last()
    .waitFor();
}

/** Sends a message; does not wait for the answer. */
export async function send(page, text) {
  await page.fill("#input", text);
  await page.press("#input", "Enter");
}

/** Sends a message in a conversation of its own and waits for the whole answer. */
export async function ask(page, text) {
  await page.click("#new");
  await page.locator("article").first().waitFor({ state: "detached" });
  await send(page, text);
  await idle(page);
}

/** All records of a store of the page, by the names of page's script. */
export const stored = (page, name) => page.evaluate((name) => result(records(name).getAll()), name);

/** The accessibility checker's complaints. The policy forbids a script element, so the checker is given to the debugger. */
export async function complaints(trial, page) {
  await page.evaluate(trial.axe);
  const { violations } = await page.evaluate(() => axe.run());
  return violations.map((it) => it.id + ": " + it.nodes.map((node) => node.html.slice(0, 160)).join(" ; "));
}

/** Pastes or drops files into what `query` finds, as a browser gives them: [name, base64, type]. */
export async function give(page, kind, query, ...files) {
  await page.locator(query).evaluate(
    (target, [kind, files]) => {
      const data = new DataTransfer();
      for (const [name, base64, type] of files)
        data.items.add(new File([Uint8Array.from(atob(base64), (it) => it.charCodeAt(0))], name, { type }));
      const more = { bubbles: true, cancelable: true };
      for (const name of kind === "drop" ? ["dragover", "drop"] : [])
        target.dispatchEvent(new DragEvent(name, { ...more, dataTransfer: data }));
      if (kind === "paste") target.dispatchEvent(new ClipboardEvent(kind, { ...more, clipboardData: data }));
    },
    [kind, files],
  );
}
