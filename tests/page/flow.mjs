// The page in a headless Chromium against the built-in guide: node flow.mjs PROGRAM CHROMIUM FOLDER. FOLDER has node_modules
// with playwright-core and axe-core, and gets the screenshots.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const [program, executablePath, folder] = process.argv.slice(2);
const require = createRequire(folder + "/");
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

async function freePort() {
  const probe = createServer().listen(0, "127.0.0.1");
  await once(probe, "listening");
  const { port } = probe.address();
  probe.close();
  await once(probe, "close");
  return port;
}
async function serve(port, ...more) {
  const child = spawn(program, ["--port", String(port), ...more], { stdio: ["ignore", "ignore", "pipe"] });
  let log = "";
  for await (const piece of child.stderr.iterator({ destroyOnReturn: false })) {
    log += piece;
    if (log.includes('"listening"')) { child.stderr.resume(); return child; }
  }
  throw new Error("the server did not start: " + log);
}
async function end(child) { child.kill("SIGKILL"); await once(child, "exit"); }

const port = await freePort(), origin = `http://127.0.0.1:${port}`;
let server = await serve(port);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
try {
  const context = await browser.newContext({ viewport: { width: 1200, height: 800 } });
  const foreign = [], faults = [];
  context.on("request", (it) => { if (!it.url().startsWith(origin)) foreign.push(it.url()); });
  const open = async () => {
    const page = await context.newPage();
    page.setDefaultTimeout(15000);
    page.on("pageerror", (error) => faults.push(String(error)));
    await page.goto(origin);
    await page.locator("#model option").first().waitFor({ state: "attached" });
    return page;
  };
  const idle = (page) => page.locator("article.assistant footer button", { hasText: "Regenerate" }).last().waitFor();
  const answers = (page) => page.locator("article.assistant .body").last();
  const step = (text) => console.log("ok", text);

  const page = await open();
  await page.fill("#input", "How do I serve a model?");
  await page.press("#input", "Enter");
  await idle(page);
  const first = await answers(page).innerText();
  assert.ok(first.length > 10, first);
  step("a conversation");

  await page.getByRole("button", { name: "Same again" }).click();
  await idle(page);
  assert.equal(await answers(page).innerText(), first);
  await page.getByText("2/2").waitFor();
  step("the same seed gives the same answer, as a branch");

  await page.getByRole("button", { name: "Tokens" }).click();
  await page.locator(".tokens button").nth(2).click();
  await page.locator(".others button").nth(1).click();
  await page.getByText("3/3").waitFor();
  await idle(page);
  const pieces = await page.locator(".tokens button").allTextContents();
  assert.ok(pieces.length > 2 && pieces.join("").length > 5, pieces.join("|"));
  await page.screenshot({ path: folder + "/tokens.png" });
  step("a branch from a token");

  await page.getByRole("button", { name: "Edit this message" }).click();
  await page.getByLabel("Message to edit").fill("How do I download a model?");
  await page.getByRole("button", { name: "Send as a branch" }).click();
  await page.locator("article.user", { hasText: "2/2" }).waitFor();
  await idle(page);
  const edited = await answers(page).innerText();
  await page.reload();
  await idle(page);
  assert.equal(await answers(page).innerText(), edited);
  step("an edit, and nothing is lost by a reload");

  const second = await open();
  await second.locator("#list button", { hasText: "How do I serve" }).click();
  for (const [tab, text] of [[second, "What is the guide?"], [page, "How do I chat?"]]) {
    await tab.fill("#input", text);
    await tab.press("#input", "Enter");
    await idle(tab);
  }
  await page.waitForFunction(async () => {
    const request = indexedDB.open("mlx-page");
    const base = await new Promise((done) => { request.onsuccess = () => done(request.result); });
    const all = await new Promise((done) => { const it = base.transaction("talks").objectStore("talks").getAll(); it.onsuccess = () => done(it.result); });
    base.close();
    const texts = all.flatMap((it) => Object.values(it.nodes).map((node) => node.content));
    return ["What is the guide?", "How do I chat?"].every((it) => texts.includes(it));
  });
  await second.close();
  step("two tabs keep each other's messages");

  const hostile = "<img src=x onerror=\"window.hit=1\"> <script>window.hit=1<\/script> <style>body{display:none}</style> " +
    "[a](javascript:window.hit=1) [b](data:text/html,x) ![c](https://evil.example/x.png) [d](https://fine.example/)\n\n| a |\n|---|\n| <b onclick=x>y</b> |\n\n" + ">".repeat(5000);
  await page.evaluate((text) => { const place = document.createElement("div"); place.id = "trial"; document.body.append(place); drawMarkdown(place, text); }, hostile);
  assert.equal(await page.locator("#trial img, #trial script, #trial style, #trial b").count(), 0);
  const links = await page.locator("#trial a").evaluateAll((all) => all.map((it) => it.protocol));
  assert.ok(links.length && links.every((it) => it === "https:"), links.join());
  await page.evaluate(() => { const it = document.createElement("script"); it.textContent = "window.hit=1"; document.body.append(it); document.getElementById("trial").remove(); });
  assert.equal(await page.evaluate(() => window.hit), undefined);
  step("hostile output is text, and the policy stops a script");

  await end(server);
  await page.fill("#input", "Is it back?");
  await page.press("#input", "Enter");
  await page.locator("#banner:visible").waitFor();
  server = await serve(port);
  await page.locator("#banner").waitFor({ state: "hidden" });
  await idle(page);
  await page.waitForFunction(() => [...document.querySelectorAll("article.assistant .body")].pop().textContent.length > 3);
  step("loss of the server and its return");

  for (const name of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme: name });
    await page.evaluate(() => document.querySelectorAll("nav details").forEach((it) => { it.open = true; }));
    await page.screenshot({ path: `${folder}/${name}.png` });
    // The policy forbids a script element, so the checker is given to the debugger.
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() => axe.run());
    assert.deepEqual(violations.map((it) => it.id + ": " + it.nodes.map((node) => node.html.slice(0, 120)).join(" ; ")), []);
  }
  await page.setViewportSize({ width: 390, height: 800 });
  await page.screenshot({ path: folder + "/phone.png" });
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= 390), "it is wider than a phone");
  step("accessibility in light and dark, and a phone's width");

  await end(server);
  server = await serve(port, "--api-key", "k");
  await page.reload();
  await page.fill("#key", "k");
  await page.press("#key", "Enter");
  await page.locator("#locked").waitFor({ state: "hidden" });
  await end(server);
  server = await serve(port, "--no-page");
  assert.equal((await fetch(origin, { headers: { accept: "text/html" } })).status, 404);
  step("a key is asked for, and --no-page");
  assert.deepEqual([foreign, faults], [[], []]);
} finally {
  await browser.close();
  server.kill("SIGKILL");
}
