// Steps: conversations, branches, tabs, and the loss of the server, with the built-in guide and a model that follows a script.
import assert from "node:assert/strict";
import { ask, idle, last, pause, send, stored } from "./support.mjs";

const texts = async (page) => (await stored(page, "nodes")).map((it) => it.content);
const settled = async (page, check) => {
  for (let tries = 0; tries < 100; tries += 1) {
    if (await check()) return;
    await pause(50);
  }
  assert.fail(await page.locator("#talk").innerText());
};

export const guide = {
  async "a conversation, and the same seed gives the same answer as a branch"(trial, page) {
    await send(page, "How do I serve a model?");
    await idle(page);
    // Its checkpoint says that it is greedy, so the page sends no temperature.
    assert.equal(await page.locator("#field-temperature").getAttribute("placeholder"), "0 checkpoint");
    assert.equal(trial.proxy.bodies.at(-1).temperature, undefined);
    const first = await last(page).innerText();
    assert.ok(first.length > 10, first);
    await page.getByRole("button", { name: "Repeat with the same seed" }).click();
    await page.getByText("2/2").waitFor();
    await idle(page);
    assert.equal(await last(page).innerText(), first);
  },
  async "a branch from a token keeps the text before it"(trial, page) {
    await page.getByRole("button", { name: "Tokens" }).click();
    const before = await page.locator(".tokens span").allTextContents();
    await page.locator(".tokens span").nth(2).click();
    const name = await page.locator(".others button").nth(1).textContent();
    await page.locator(".others button").nth(1).click();
    await page.getByText("3/3").waitFor();
    await idle(page);
    const pieces = await page.locator(".tokens span").allTextContents();
    assert.deepEqual(pieces.slice(0, 2), before.slice(0, 2));
    assert.equal(JSON.stringify(pieces[2]), name.slice(0, name.lastIndexOf('"') + 1));
    await page.screenshot({ path: trial.folder + "/tokens.png" });
    const text = pieces.join("");
    await page.getByRole("button", { name: "Text", exact: true }).click();
    assert.equal((await last(page).innerText()).slice(0, 10), text.replaceAll("`", "").slice(0, 10));
  },
  async "an edit is a branch, and a reload loses nothing"(trial, page) {
    await page.getByRole("button", { name: "Edit this message" }).click();
    await page.getByLabel("Message to edit").fill("How do I download a model?");
    await page.getByRole("button", { name: "Send as a branch" }).click();
    await page.locator("article.user", { hasText: "2/2" }).waitFor();
    await idle(page);
    const edited = await last(page).innerText();
    await page.reload();
    await idle(page);
    assert.equal(await last(page).innerText(), edited);
  },
};

export const scripted = {
  async "an answer is stopped, and goes on where it stopped"(trial, page) {
    trial.proxy.hold();
    await page.click("#new");
    await send(page, "count");
    await page.locator("article.assistant .body", { hasText: "four" }).waitFor();
    await page.locator("footer", { hasText: "tokens/s" }).waitFor();
    await page.click("#stop");
    await idle(page);
    const half = await last(page).innerText();
    assert.ok(!half.includes("twenty"), half);
    assert.ok(
      await page.evaluate(() => document.activeElement.id === "input"),
      "the focus is not lost with the button",
    );
    trial.proxy.release();
    await page.getByRole("button", { name: "Continue" }).click();
    await page.locator("article.assistant .body", { hasText: "twenty" }).waitFor();
    await idle(page);
    assert.match(await last(page).innerText(), /^one two three four five six eight .* nineteen twenty$/);
    assert.equal(
      await page.getByRole("button", { name: "Repeat with the same seed" }).count(),
      0,
      "a seed does not repeat a continued answer",
    );
  },
  async "Regenerate makes a branch; the arrows go between branches"(trial, page) {
    await ask(page, "Hi");
    await page.getByRole("button", { name: "Regenerate" }).click();
    await page.getByText("2/2").waitFor();
    await idle(page);
    await page.getByRole("button", { name: "Earlier branch" }).click();
    await page.getByText("1/2").waitFor();
    assert.equal(await page.locator("article").count(), 2);
  },
  async "half an answer outlives a reload and goes on"(trial, page) {
    trial.proxy.hold();
    await page.click("#new");
    await send(page, "count again");
    await page.locator("article.assistant .body", { hasText: "eleven" }).waitFor();
    await settled(page, async () => (await stored(page, "nodes")).some((it) => /^one .* eleven$/.test(it.content)));
    await page.reload();
    trial.proxy.release();
    await page.locator("footer", { hasText: "interrupted" }).waitFor();
    assert.match(await last(page).innerText(), /^one two .* eleven$/);
    await page.getByRole("button", { name: "Continue" }).click();
    await page.locator("article.assistant .body", { hasText: "twenty" }).waitFor();
    assert.match(await last(page).innerText(), /^one two three four five six eight nine ten .* twenty$/);
  },
  async "an answer goes on while another conversation is shown"(trial, page) {
    trial.proxy.hold();
    await page.click("#new");
    await send(page, "count in the background");
    await page.locator("article.assistant .body", { hasText: "two" }).waitFor();
    await page.click("#new");
    await send(page, "Hi there");
    await page.locator("article.assistant .body", { hasText: "Hello there." }).waitFor();
    trial.proxy.release();
    await page.locator("#list button", { hasText: "count in the background" }).click();
    await page.locator("article.assistant .body", { hasText: "twenty" }).waitFor();
    await idle(page);
  },
  async "two tabs keep each other's messages"(trial, page) {
    await ask(page, "shared");
    const second = await trial.open();
    await second.locator("#list button", { hasText: "shared" }).click();
    await second.locator("article").first().waitFor();
    for (const [tab, text] of [
      [second, "from the second"],
      [page, "from the first"],
    ]) {
      await send(tab, text);
      await idle(tab);
    }
    await settled(page, async () => {
      const all = await texts(page);
      return ["from the second", "from the first"].every((it) => all.includes(it));
    });
    await second.close();
  },
  async "a conversation that is deleted in one tab while another writes to it stays deleted"(trial, page) {
    trial.proxy.hold();
    await page.click("#new");
    await send(page, "count to be deleted");
    await page.locator("article.assistant .body", { hasText: "three" }).waitFor();
    const second = await trial.open();
    second.on("dialog", (it) => it.accept());
    await second.locator("#list li", { hasText: "to be deleted" }).hover();
    await second.getByRole("button", { name: "Delete count to be deleted" }).click();
    await second.locator("#list li", { hasText: "to be deleted" }).waitFor({ state: "detached" });
    await page.locator("article").first().waitFor({ state: "detached" });
    trial.proxy.release();
    await send(page, "after it");
    await idle(page);
    assert.ok((await stored(page, "talks")).every((it) => !it.title.includes("to be deleted")));
    assert.ok((await texts(page)).every((it) => !it.includes("to be deleted")));
    await second.close();
  },
  async "the server is lost within an answer, which goes on when it is back"(trial, page) {
    await page.click("#new");
    Object.assign(trial.proxy, { cut: 5, pace: 30 });
    await send(page, "count through a loss");
    await page.locator("#banner:visible").waitFor();
    assert.match(await last(page).innerText(), /^one/);
    trial.proxy.pace = 0;
    await page.locator("article.assistant .body", { hasText: "twenty" }).waitFor();
    await page.locator("#banner").waitFor({ state: "hidden" });
    await idle(page);
    assert.match(await last(page).innerText(), /^one two three four .* twenty$/);
  },
  async "a browser without storage, or whose storage is full, has a note and answers"(trial, page) {
    const context = await trial.browser.newContext();
    await context.addInitScript(() => {
      for (const name of ["localStorage", "sessionStorage", "indexedDB"])
        Object.defineProperty(window, name, {
          get() {
            throw new DOMException("forbidden", "SecurityError");
          },
        });
    });
    const other = await trial.open(context);
    await other.locator("#hint", { hasText: "This browser does not allow storage" }).waitFor();
    await send(other, "Hi");
    await last(other).filter({ hasText: "Hello there." }).waitFor();
    await other.click("#theme");
    await other.locator("html.dark").waitFor();
    await context.close();

    await page.click("#new");
    await page.evaluate(() => {
      // The browser finds out that the disk is full when a transaction ends.
      window.write = IDBObjectStore.prototype.put;
      IDBObjectStore.prototype.put = function (record) {
        const request = write.call(this, record);
        if (this.name === "talks") request.addEventListener("success", () => this.transaction.abort());
        return request;
      };
    });
    await send(page, "Hi to a full disk");
    await page.locator("#hint", { hasText: "The browser could not store this conversation" }).waitFor();
    await idle(page);
    assert.equal(await last(page).innerText(), "Hello there.");
    await page.evaluate(() => {
      IDBObjectStore.prototype.put = write;
    });
    await page.getByRole("button", { name: "Regenerate" }).click();
    await page.getByText("2/2").waitFor();
    await idle(page);
    const kept = (await stored(page, "nodes")).filter((it) => it.content === "Hi to a full disk");
    assert.equal(kept.length, 1, "all of it is stored once there is space");
  },
  async "the server is gone, and a message is answered when it is back"(trial, page) {
    await page.click("#new");
    await trial.end();
    await send(page, "Is it back?");
    await page.locator("#banner:visible").waitFor();
    await trial.serve(...trial.models());
    await page.locator("article.assistant .body", { hasText: "Hello there." }).waitFor();
    await page.locator("#banner").waitFor({ state: "hidden" });
  },
};
