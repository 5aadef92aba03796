// Pictures the page with an answer of a model: node page.mjs MLX-SERVER MODEL CHROMIUM FOLDER TARGET. FOLDER has node_modules with the packages of
// tests/page. `cargo xtask recording` runs it.
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [program, model, executablePath, folder, target] = process.argv.slice(2);
const name = "SmolLM2-135M-Instruct";
const server = spawn(program, ["--port", "0", "-m", `${name}=${model}`, "--exact", "--all-models=false"], {
  stdio: ["ignore", "ignore", "pipe"],
});
const { chromium } = createRequire(folder + "/")("playwright-core");
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
try {
  let address;
  for await (const line of createInterface(server.stderr)) {
    address = /"address":"([^"]+)"/.exec(line)?.[1];
    if (address) break;
  }
  server.stderr.resume();
  const page = await browser.newPage({ viewport: { width: 1200, height: 760 }, colorScheme: "light" });
  page.setDefaultTimeout(300000);
  await page.goto("http://" + address);
  await page.locator("#model option").first().waitFor({ state: "attached" });
  const ask = async (text) => {
    const answers = await page.locator("article.assistant").count();
    await page.fill("#input", text);
    await page.press("#input", "Enter");
    await page.locator("article.assistant footer button", { hasText: "Tokens" }).nth(answers).waitFor();
  };
  await page.getByText("Conversation settings").click();
  await page.fill("#field-seed", "7");
  await page.fill("#field-temperature", "0.6");
  await page.getByText("Conversation settings").click();
  await ask("Write a Python function is_even(n).");
  await ask("What is the capital of France?");
  await page.getByRole("button", { name: "Tokens" }).last().click();
  await page.locator(".tokens span").nth(5).click();
  await page.locator(".others button").first().waitFor();
  await page.screenshot({ path: target });
} finally {
  await browser.close();
  server.kill();
}
