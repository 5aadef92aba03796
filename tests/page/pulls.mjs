// Steps: a model is downloaded from a small Hub, with a progress bar; the download is cancelled and continued.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { readdirSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { look } from "./looks.mjs";
import { idle, pause, root, send } from "./support.mjs";

const COMMIT = "0123456789abcdef0123456789abcdef01234567";
const BLOCK = 4096;

/** Starts a Hub with one model, `org/tiny`. `pace` is the time before each block of a file in milliseconds, `starts` the first bytes of the
 * requests for weights. */
async function startHub() {
  const folder = join(root, "tests/golden/models/llama-f32"),
    files = Object.fromEntries(readdirSync(folder).map((name) => [name, readFileSync(join(folder, name))])),
    hub = { pace: 0, starts: [] };
  const entry = ([rfilename, bytes]) => {
    const sha256 = createHash("sha256").update(bytes).digest("hex");
    return { rfilename, lfs: { sha256, size: bytes.length } };
  };
  const server = createServer(async (asked, answer) => {
    const file = files[asked.url.split(`/org/tiny/resolve/${COMMIT}/`)[1]];
    if (asked.url.startsWith("/api/models/org/tiny/"))
      return answer.end(JSON.stringify({ sha: COMMIT, siblings: Object.entries(files).map(entry) }));
    if (!file) return answer.writeHead(404, { "x-error-code": "RepoNotFound" }).end();
    const start = Number(/^bytes=(\d+)-/.exec(asked.headers.range)?.[1] ?? 0);
    if (asked.url.endsWith(".safetensors")) hub.starts.push(start);
    const range = { "content-range": `bytes ${start}-${file.length - 1}/${file.length}` };
    answer.writeHead(start ? 206 : 200, { "content-length": file.length - start, ...(start && range) });
    for (let at = start; at < file.length && !answer.destroyed; at += BLOCK) {
      answer.write(file.subarray(at, at + BLOCK));
      if (hub.pace) await pause(hub.pace);
    }
    answer.end();
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  hub.origin = `http://127.0.0.1:${server.address().port}`;
  hub.close = () => {
    server.closeAllConnections();
    server.close();
  };
  return hub;
}

const text = (page, words) => page.locator("#pull-text", { hasText: words }).waitFor();

async function download(page, name) {
  await page.fill("#wanted", name);
  await page.press("#wanted", "Enter");
}

export const pulls = {
  async "a model is downloaded, cancelled, continued and selected; errors name the reason"(trial, page) {
    assert.ok(await page.locator("#downloads").isHidden(), "the server did not allow downloads");
    const hub = await startHub();
    Object.assign(trial.variables, { HF_ENDPOINT: hub.origin, HF_HOME: join(trial.files, "hub"), HF_HUB_OFFLINE: "" });
    Object.assign(trial.variables, { HF_HUB_CACHE: "", HF_TOKEN: "", no_proxy: "*" });
    await trial.serve(...trial.models(), "--allow-pull");
    await page.reload();
    await page.click("#new");
    await page.locator("#downloads > summary").click();

    await download(page, "org/none");
    await text(page, "org/none was not downloaded: org/none: " + hub.origin + " has no model of that name");
    await download(page, "llama3.2");
    await text(page, "try mlx-community/Llama-3.2-3B-Instruct-4bit");

    hub.pace = 50;
    await download(page, "org/tiny");
    await text(page, /kB of .* \d+ %/);
    await page.waitForFunction(() => $("pull-bar").value > 0.2 && $("pull-bar").value < 1);
    const second = await trial.open();
    await second.locator("#downloads > summary").click();
    await download(second, "org/tiny");
    await text(second, "org/tiny is being downloaded; wait for its end, or cancel it");
    await second.close();
    await page.getByRole("button", { name: "Cancel" }).click();
    await text(page, "Cancelled. The next download of org/tiny continues it.");

    await download(page, "org/tiny");
    await page.waitForFunction(() => $("pull-bar").value > 0.2 && $("pull-bar").value < 1);
    hub.pace = 400;
    await look(trial, page, "download", () => page.click("#menu"));
    hub.pace = 0;
    await text(page, "org/tiny is downloaded and selected.");
    assert.ok(hub.starts.at(-1) > 0, "the second download continued the first one");
    assert.ok(await page.locator("#pull-bar").isHidden());
    assert.equal(await page.locator("#model").inputValue(), "org/tiny");
    await send(page, "Hi");
    await idle(page);
    assert.equal(trial.proxy.bodies.at(-1).model, "org/tiny");
    hub.close();
  },
};
