// Steps: pictures, with the tiny model of the golden tests that sees and one that does not.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { complaints, give, idle, seen, send, stored } from "./support.mjs";

const read = (name) => readFileSync(`${seen}/${name}.png`).toString("base64");
const attached = (page) => page.locator("#ask .attachments img");
const sent = (page) => page.locator("article.user .attachments img");

/** The sizes that pictures have for the browser, which has none for what it could not or must not show. */
const sizes = (pictures) =>
  pictures.evaluateAll((all) =>
    Promise.all(
      all.map(async (it) => {
        await it.decode();
        return it.naturalWidth + "x" + it.naturalHeight;
      }),
    ),
  );
const partsOf = (message) => message.content.map((it) => it.text ?? it.image_url.url.slice(0, 22));

export const pictures = {
  async "a model that reads text alone is given no pictures"(trial, page) {
    await page.click("#new");
    await give(page, "drop", "#talk", ["a.png", read("48x32"), "image/png"]);
    await page.locator("#hint", { hasText: "scripted does not support images" }).waitFor();
    assert.equal(await attached(page).count(), 0);
  },
  async "pictures are chosen, pasted and dropped, and can be removed"(trial, page) {
    await page.selectOption("#model", "seeing");
    await page.locator("#attach").waitFor();
    const [chooser] = await Promise.all([page.waitForEvent("filechooser"), page.click("#attach")]);
    await chooser.setFiles([`${seen}/48x32.png`, `${seen}/41x30.png`]);
    await attached(page).nth(1).waitFor();
    await give(page, "paste", "#input", ["image.png", read("200x90"), "image/png"]);
    await give(page, "drop", "#talk", ["dropped.png", read("32x16"), "image/png"]);
    await attached(page).nth(3).waitFor();
    assert.deepEqual(await sizes(attached(page)), ["48x32", "41x30", "200x90", "32x16"]);
    await page.getByRole("button", { name: "Remove 41x30.png" }).click();
    await page.getByRole("button", { name: "Remove image.png" }).click();
    assert.deepEqual(await sizes(attached(page)), ["48x32", "32x16"]);
    await page.screenshot({ path: trial.folder + "/pictures-before.png" });
    assert.deepEqual(await complaints(trial, page), []);
    await give(page, "paste", "#input", ["picture.bmp", btoa("BM"), "image/bmp"]);
    await page.locator("#hint", { hasText: "picture.bmp is not a png, jpeg, webp or gif file." }).waitFor();
  },
  async "pictures that were not sent stay over a reload, unless they are too large"(trial, page) {
    await page.reload();
    await attached(page).nth(1).waitFor();
    assert.deepEqual(await sizes(attached(page)), ["48x32", "32x16"]);
    await page.selectOption("#model", "seeing");
    await page.locator("#attach").waitFor();
    await page.setInputFiles("#files", trial.large("large.png", 12 << 20));
    await page.locator("#hint", { hasText: "too large to keep" }).waitFor();
    await page.reload();
    await page.locator("#send").waitFor();
    assert.equal(await attached(page).count(), 0);
    await page.selectOption("#model", "seeing");
    await page.locator("#attach").waitFor();
    await page.setInputFiles("#files", [`${seen}/48x32.png`, `${seen}/32x16.png`]);
    await attached(page).nth(1).waitFor();
  },
  async "the model is given the pictures before the text, and they stay in the conversation"(trial, page) {
    await page.locator("#settings").click();
    await page.fill("#field-max_tokens", "4");
    await page.fill("#field-temperature", "0");
    await page.locator("#settings").click();
    await send(page, "What is this?");
    await idle(page);
    assert.equal(await attached(page).count(), 0);
    assert.equal(await page.locator(".note:visible").count(), 0);
    assert.deepEqual(partsOf(trial.proxy.bodies.at(-1).messages[0]), [
      "data:image/png;base64,",
      "data:image/png;base64,",
      "What is this?",
    ]);
    assert.equal(trial.proxy.bodies.at(-1).messages[0].content[1].image_url.url.slice(22), read("32x16"));
    await page.reload();
    await idle(page);
    assert.equal(await attached(page).count(), 0);
    assert.deepEqual(await sizes(sent(page)), ["48x32", "32x16"]);
    await page.screenshot({ path: trial.folder + "/pictures-after.png" });
    assert.deepEqual(await complaints(trial, page), []);
  },
  async "a message that is edited keeps its pictures but those that are removed"(trial, page) {
    await page.getByRole("button", { name: "Edit this message" }).click();
    await page.getByRole("button", { name: "Remove 48x32.png" }).click();
    await give(page, "paste", "article.user textarea", ["more.png", read("41x30"), "image/png"]);
    await page.locator("article.user img[alt='more.png']").waitFor();
    await page.getByLabel("Message to edit").fill("");
    await page.getByRole("button", { name: "Send as a branch" }).click();
    await page.locator("article.user", { hasText: "2/2" }).waitFor();
    await idle(page);
    assert.deepEqual(await sizes(sent(page)), ["32x16", "41x30"]);
    assert.equal(partsOf(trial.proxy.bodies.at(-1).messages[0]).length, 2);
    await page.getByRole("button", { name: "Earlier branch" }).click();
    await page.getByText("1/2").waitFor();
    assert.deepEqual(await sizes(sent(page)), ["48x32", "32x16"], "the message before is as it was");
  },
  async "what the server says of a picture is shown, also where it is too large"(trial, page) {
    await page.click("#new");
    await give(page, "drop", "#input", ["half.png", btoa(atob(read("200x90")).slice(0, 300)), "image/png"]);
    await attached(page).first().waitFor();
    await page.press("#input", "Enter");
    await page.locator(".note", { hasText: "cannot be decoded" }).waitFor();
    assert.equal(
      await page
        .locator("#list li.now")
        .innerText()
        .then((it) => it.includes("half.png")),
      true,
    );
    await page.click("#new");
    await page.setInputFiles("#files", trial.large("large.png", 13 << 20));
    await attached(page).first().waitFor();
    await page.press("#input", "Enter");
    await page.locator(".note", { hasText: "--max-body" }).waitFor();
    assert.equal(await page.locator("#banner").isVisible(), false);
  },
  async "an import takes pictures, and nothing else in their place"(trial, page) {
    const url = "data:image/png;base64," + read("48x32");
    const node = {
      role: "user",
      content: "Look.",
      pictures: [
        { name: "a.png", url },
        { name: "b", url: "https://evil.example/x.png" },
        { url: "data:image/svg+xml;base64,AA" },
        3,
        { url },
      ],
    };
    const given = JSON.stringify({
      conversations: [{ title: "with pictures", leaf: "x", nodes: { x: node } }],
    });
    await page.setInputFiles("#file", {
      name: "export.json",
      mimeType: "application/json",
      buffer: Buffer.from(given),
    });
    await page.locator("#hint", { hasText: "1 conversation was imported." }).waitFor();
    assert.deepEqual(await sizes(sent(page)), ["48x32", "48x32"]);
    const kept = (await stored(page, "nodes")).find((it) => it.content === "Look.");
    assert.deepEqual(kept.pictures, [
      { name: "a.png", url },
      { name: "picture", url },
    ]);
    await page.click("#new");
    await page.selectOption("#model", "scripted");
  },
};
