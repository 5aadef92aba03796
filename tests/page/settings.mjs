// Steps: numbers, presets, defaults, the chosen model, and a model without a chat template.
import assert from "node:assert/strict";
import { ask, complaints, idle, last, send } from "./support.mjs";

const open = (page) =>
  page.evaluate(() => {
    $("settings").parentNode.open = true;
  });
const answerDialog = (page, text) => {
  page.removeAllListeners("dialog");
  page.once("dialog", (it) => it.accept(text));
};

export const settings = {
  async "a number takes a comma, and is checked against its range before it is sent"(trial, page) {
    await page.click("#new");
    await open(page);
    const problem = async (name, value) => {
      await page.fill("#field-" + name, value);
      await page.press("#field-" + name, "Tab");
      return page.locator("#problem-" + name).innerText();
    };
    assert.equal(await problem("top_p", "1,5"), "top_p is 1.5; it must be from 0 to 1");
    assert.equal(await page.locator("#field-top_p").getAttribute("aria-invalid"), "true");
    await page.screenshot({ path: trial.folder + "/numbers.png" });
    assert.deepEqual(await complaints(trial, page), []);
    const sent = trial.proxy.bodies.length;
    await send(page, "Hi");
    await page.locator("#hint", { hasText: "Not sent: top_p is 1.5; it must be from 0 to 1." }).waitFor();
    assert.equal(trial.proxy.bodies.length, sent);
    assert.equal(await page.locator("#input").inputValue(), "Hi", "the message stays");
    assert.equal(await problem("top_k", "2.5"), "top_k is 2.5; it must be a whole number");
    assert.equal(
      await problem("max_tokens", "4,000"),
      "max_tokens is 4,000; it must be a whole number without a comma",
    );
    await problem("max_tokens", "");
    assert.equal(await problem("temperature", "warm"), "temperature is warm; it must be a number");
    assert.equal(await problem("temperature", "-1"), "temperature is -1; it must be at least 0");
    await problem("top_k", "");
    await problem("temperature", "0,25");
    await problem("min_p", ".05");
    assert.equal(await problem("top_p", "0,9"), "");
    assert.equal(await page.locator("[aria-invalid]").count(), 0);
    await send(page, "Hi");
    await idle(page);
    const { temperature, top_p, min_p } = trial.proxy.bodies.at(-1);
    assert.deepEqual([temperature, top_p, min_p], [0.25, 0.9, 0.05]);
    await problem("min_p", "");
  },
  async "presets keep settings and model by name, also for other tabs"(trial, page) {
    await page.fill("#system", "Review the code.");
    answerDialog(page, "review");
    await page.click("#save-preset");
    await page.locator("#hint", { hasText: "The preset review has these settings" }).waitFor();
    const second = await trial.open();
    await page.click("#new");
    await page.selectOption("#model", "random");
    assert.deepEqual([await page.inputValue("#system"), await page.inputValue("#field-top_p")], ["", ""]);
    await page.selectOption("#preset", "review");
    assert.deepEqual(
      [
        await page.inputValue("#system"),
        await page.inputValue("#field-top_p"),
        await page.inputValue("#model"),
      ],
      ["Review the code.", "0,9", "scripted"],
    );
    await page.reload();
    await open(page);
    await page.locator("#preset option", { hasText: "review" }).waitFor({ state: "attached" });
    answerDialog(page);
    await page.selectOption("#preset", "review");
    await page.click("#delete-preset");
    await page.locator("#preset option", { hasText: "review" }).waitFor({ state: "detached" });
    await second.locator("#preset option", { hasText: "review" }).waitFor({ state: "detached" });
    await second.close();
  },
  async "settings become the defaults of new conversations"(trial, page) {
    await page.click("#new");
    await page.fill("#system", "Be kind.");
    await page.fill("#field-seed", "7");
    await page.click("#use-as-defaults");
    await ask(page, "Hi");
    const body = trial.proxy.bodies.at(-1);
    assert.deepEqual([body.messages[0].content, body.seed], ["Be kind.", 7]);
    await page.reload();
    await open(page);
    await page.click("#new");
    assert.equal(await page.inputValue("#system"), "Be kind.");
    await page.click("#reset");
    await page.click("#use-as-defaults");
    await page.click("#new");
    assert.deepEqual([await page.inputValue("#system"), await page.inputValue("#field-seed")], ["", ""]);
    await page.evaluate(() => {
      $("settings").parentNode.open = false;
    });
  },
  async "the chosen model survives a reload"(trial, page) {
    await page.click("#new");
    await page.selectOption("#model", "random");
    await page.reload();
    await page.locator("#model option").first().waitFor({ state: "attached" });
    assert.equal(await page.inputValue("#model"), "random");
    await page.selectOption("#model", "scripted");
  },
  async "a model is loaded and unloaded by a button; one without a chat template continues a text"(trial, page) {
    await page.click("#new");
    await page.selectOption("#model", "base");
    await page.locator("#empty h2", { hasText: "Continue a text with base" }).waitFor();
    assert.equal(await page.getAttribute("#input", "placeholder"), "A text to continue");
    await page.getByRole("button", { name: "Load into memory" }).click();
    await page.locator("#model option", { hasText: "base · loaded" }).waitFor({ state: "attached" });
    await page.getByRole("button", { name: "Unload from memory" }).click();
    await page.locator("#model option", { hasText: /^base · \d/ }).waitFor({ state: "attached" });
    await page.getByRole("button", { name: "Load into memory" }).waitFor();
    await open(page);
    await page.fill("#field-max_tokens", "4");
    await page.fill("#field-temperature", "0");
    await page.fill("#system", "Be kind.");
    await page.evaluate(() => {
      $("settings").parentNode.open = false;
    });
    await send(page, "Once upon");
    await page
      .locator("#hint", { hasText: "base has no chat template and does not get: the system prompt." })
      .waitFor();
    await idle(page);
    const first = trial.proxy.bodies.at(-1);
    assert.deepEqual(
      [first.prompt, first.max_tokens, first.messages, first.logprobs],
      ["Once upon", 4, undefined, 5],
    );
    const written = await last(page).textContent();
    assert.ok(written.length > 0);
    assert.equal(await page.locator("article .note:visible").count(), 0);
    await page.getByRole("button", { name: "Continue" }).click();
    await page.waitForFunction(
      (length) => document.querySelector("article.assistant .body").textContent.length > length,
      written.length,
    );
    await idle(page);
    assert.equal(trial.proxy.bodies.at(-1).prompt, "Once upon" + written);
    const grown = await last(page).textContent();
    await send(page, " a time");
    await page.locator("article.assistant").nth(1).waitFor();
    await idle(page);
    assert.equal(trial.proxy.bodies.at(-1).prompt, "Once upon" + grown + " a time");
    await page.screenshot({ path: trial.folder + "/base.png" });
    assert.deepEqual(await complaints(trial, page), []);
    await page.getByRole("button", { name: "Tokens" }).first().click();
    assert.ok((await page.locator(".tokens span").count()) >= 4);
    await page.locator(".tokens span").nth(1).click();
    await page.locator(".others button").nth(1).click();
    await page.getByText("2/2").waitFor();
    await idle(page);
    await page.click("#new");
    await page.selectOption("#model", "scripted");
  },
};
