// Steps: deleting and editing messages, the search in all of them, and a conversation as Markdown.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { ask, complaints, idle, last, send, stored } from "./support.mjs";

const shown = (page) => page.locator("#talk .body").allInnerTexts();
const articles = (page, count) =>
  page.waitForFunction((count) => document.querySelectorAll("article").length === count, count);

export const messages = {
  async "an answer is edited as a branch, which the model continues"(trial, page) {
    await ask(page, "Hi");
    await page.getByRole("button", { name: "Edit this answer" }).click();
    await page.getByLabel("Answer to edit").fill("Hello ");
    await page.getByRole("button", { name: "Store as a branch" }).click();
    await page.locator("article.assistant footer", { hasText: "2/2" }).waitFor();
    await page.locator("article.assistant footer", { hasText: "edited" }).waitFor();
    assert.equal((await last(page).innerText()).trim(), "Hello");
    await page.getByRole("button", { name: "Continue" }).click();
    await page.locator("article.assistant .body", { hasText: "Hello" }).waitFor();
    await idle(page);
    assert.equal(trial.proxy.bodies.at(-1).messages.at(-1).content, "Hello ");
    await page.getByRole("button", { name: "Earlier branch" }).click();
    await page.locator("article.assistant footer", { hasText: "1/2" }).waitFor();
    assert.equal(await last(page).innerText(), "Hello there.");
  },
  async "a message is deleted with all after it, after a question; the branch beside it is shown"(
    trial,
    page,
  ) {
    await send(page, "think");
    await page.getByText("Seven.").waitFor();
    await idle(page);
    const before = (await stored(page, "nodes")).length;
    const questions = [];
    page.removeAllListeners("dialog");
    page.once("dialog", (it) => {
      questions.push(it.message());
      it.dismiss();
    });
    const remove = () => page.getByRole("button", { name: "Delete this answer" }).first().click();
    await remove();
    await articles(page, 4);
    page.once("dialog", (it) => {
      questions.push(it.message());
      it.accept();
    });
    await remove();
    await articles(page, 2);
    assert.deepEqual(questions, Array(2).fill("Delete this message and the 2 messages after it?"));
    assert.match((await shown(page)).at(-1), /^Hello/);
    assert.equal(
      await page.locator("article.assistant footer", { hasText: "/2" }).count(),
      0,
      "the other branch is left",
    );
    assert.equal((await stored(page, "nodes")).length, before - 3);
    await page.reload();
    await articles(page, 2);
    page.once("dialog", (it) => it.accept());
    await page.getByRole("button", { name: "Delete this message" }).click();
    await page.locator("#empty").waitFor();
  },
  async "all messages are searched with a key, and a found one is shown on its branch"(trial, page) {
    await ask(page, "A needle in the first");
    await page.getByRole("button", { name: "Regenerate" }).click();
    await page.getByText("2/2").waitFor();
    await idle(page);
    await page.getByRole("button", { name: "Edit this message" }).click();
    await page.getByLabel("Message to edit").fill("Without it");
    await page.getByRole("button", { name: "Send as a branch" }).click();
    await page.locator("article.user", { hasText: "2/2" }).waitFor();
    await idle(page);
    await page.click("#new");
    await page.keyboard.press("Control+k");
    await page.locator("#finder[open]").waitFor();
    await page.keyboard.type("NEEDLE first");
    const found = page.locator("#found button");
    await found.nth(1).waitFor();
    assert.equal(await page.locator("#found-count").innerText(), "2 matches");
    assert.deepEqual(
      await page.locator("#found mark").allInnerTexts(),
      ["needle", "needle"],
      "the message and the title",
    );
    await page.screenshot({ path: trial.folder + "/search.png" });
    assert.deepEqual(await complaints(trial, page), []);
    await found.filter({ hasText: "You" }).click();
    await page.locator("article.found", { hasText: "A needle in the first" }).waitFor();
    assert.ok(await page.locator("#finder").isHidden());
    await page.keyboard.press("Meta+k");
    await page.locator("#sought").fill("no such words");
    await page.locator("#found-count", { hasText: "0 matches" }).waitFor();
    await page.keyboard.press("Escape");
    await page.locator("#finder").waitFor({ state: "hidden" });
  },
  async "a conversation is exported as Markdown"(trial, page) {
    await page.click("#new");
    await page.locator("#settings").click();
    await page.fill("#system", "Be brief.");
    await page.locator("#settings").click();
    await page.setInputFiles("#files", { name: "a.txt", mimeType: "text/plain", buffer: Buffer.from("abc") });
    await page.locator("#ask details").waitFor();
    await send(page, "think: of Markdown?");
    await idle(page);
    const [download] = await Promise.all([page.waitForEvent("download"), page.click("#export-markdown")]);
    assert.equal(download.suggestedFilename(), "think-of-Markdown.md");
    const expected =
      "# think: of Markdown?\n\n## System prompt\n\nBe brief.\n\n## You\n\nFile a.txt:\n```txt\nabc\n```\n\nthink: of Markdown?\n\n## scripted\n\n<details><summary>Thoughts</summary>\n\n```\nHm, let me see.\n```\n\n</details>\n\nSeven.\n";
    assert.equal(readFileSync(await download.path(), "utf8"), expected);
    await page.click("#new");
  },
};
