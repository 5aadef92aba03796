// Steps: a second tab follows the first one.
import assert from "node:assert/strict";
import { ask, idle, last, send, stored } from "./support.mjs";

export const tabs = {
  async "a second tab shows an answer while another tab receives it, and can stop it"(trial, page) {
    await ask(page, "Hi to both");
    const second = await trial.open();
    await second.locator("#list button", { hasText: "Hi to both" }).click();
    await second.locator("article").nth(1).waitFor();
    trial.proxy.hold();
    await send(page, "count for both");
    await second.locator("article.user .body", { hasText: "count for both" }).waitFor();
    await second.locator("article.assistant .body", { hasText: "three" }).waitFor();
    assert.equal(await second.locator("footer", { hasText: "interrupted" }).count(), 0);
    await second.locator("#stop").click();
    await page.locator("footer", { hasText: "stopped" }).waitFor();
    await second.locator("footer", { hasText: "stopped" }).waitFor();
    trial.proxy.release();
    await idle(second);
    await second.getByRole("button", { name: "Continue" }).click();
    await last(page).filter({ hasText: "twenty" }).waitFor();
    await idle(page);
    await second.close();
  },
  async "a second tab takes over settings, title, theme, and a deleted message"(trial, page) {
    const second = await trial.open();
    await second.locator("#list button", { hasText: "Hi to both" }).click();
    await second.locator("article").nth(3).waitFor();
    await page.evaluate(() => {
      $("settings").parentNode.open = true;
    });
    await page.fill("#system", "For both.");
    await second.waitForFunction(() => $("system").value === "For both.");
    page.removeAllListeners("dialog");
    page.once("dialog", (it) => it.accept("Renamed for both"));
    await page.getByRole("button", { name: "Rename Hi to both" }).click();
    await second.locator("#list li.now", { hasText: "Renamed for both" }).waitFor();
    const isDark = () => document.documentElement.classList.contains("dark");
    const before = await second.evaluate(isDark);
    await page.click("#theme");
    await second.waitForFunction(
      (before) => document.documentElement.classList.contains("dark") !== before,
      before,
    );
    await page.click("#theme");
    await page.evaluate(() => localStorage.removeItem("mlx-theme"));
    page.once("dialog", (it) => it.accept());
    await page.getByRole("button", { name: "Delete this message" }).last().click();
    await second.waitForFunction(() => document.querySelectorAll("article").length === 2);
    await page.click("#reset");
    await page.evaluate(() => {
      $("settings").parentNode.open = false;
    });
    await second.close();
  },
  async "a tab writes only its own changes, and an answer that another tab deletes stays deleted"(
    trial,
    page,
  ) {
    await ask(page, "Hi once more");
    // Another tab writes, and this one has not heard of it yet.
    await page.evaluate(async () => {
      const record = await result(records("talks").get(shown.id));
      await result(records("talks", "readwrite").put({ ...record, system: "From elsewhere." }));
    });
    trial.proxy.hold();
    await send(page, "count until deleted");
    await page.locator("article.assistant .body", { hasText: "two" }).waitFor();
    assert.equal(await page.inputValue("#system"), "From elsewhere.");
    const second = await trial.open();
    await second.locator("#list button", { hasText: "Hi once more" }).click();
    await second.locator("article.assistant .body", { hasText: "three" }).waitFor();
    await second.waitForFunction(() => runningNode(shown.id));
    const id = await second.evaluate(async () => {
      const id = runningNode(shown.id);
      shown.leaf = shown.nodes[id].parent;
      await deleteNodes(shown, [id]);
      return id;
    });
    await page.waitForFunction(() => !isAnswering(shown.id));
    await page.waitForFunction(() => document.querySelectorAll("article").length === 3);
    trial.proxy.release();
    assert.ok((await stored(page, "nodes")).every((it) => it.id !== id));
    const { system } = (await stored(page, "talks")).find((it) => it.title === "Hi once more");
    assert.equal(system, "From elsewhere.");
    await second.close();
  },
  async "an answer of a tab that was closed is interrupted for the others"(trial, page) {
    trial.proxy.hold();
    const second = await trial.open();
    await second.click("#new");
    await send(second, "count until closed");
    await page.locator("#list button", { hasText: "count until closed" }).click();
    await page.locator("article.assistant .body", { hasText: "two" }).waitFor();
    await second.close();
    trial.proxy.release();
    await page.locator("footer", { hasText: "interrupted" }).waitFor();
    await page.getByRole("button", { name: "Continue" }).click();
    await last(page).filter({ hasText: "twenty" }).waitFor();
    await idle(page);
  },
};
