// Steps: the page at two widths, light and dark, with everything that it can show; and the page on a phone.
import assert from "node:assert/strict";
import { complaints, idle, send } from "./support.mjs";

const SIZES = [
  [1280, 800],
  [390, 844],
];
const THEMES = ["light", "dark"];
const setDetails = (page, open) =>
  page.evaluate(
    (open) =>
      document.querySelectorAll("details").forEach((it) => {
        it.open = open;
      }),
    open,
  );
const isInside = (page) => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth);

/** The visible buttons and fields that are smaller than a finger. A box is as large as its label. */
const small = (page) =>
  page.evaluate(() =>
    [...document.querySelectorAll("button, input, select, summary")]
      .filter((it) => it.checkVisibility() && it.getClientRects().length)
      .map((it) => [it.type === "checkbox" ? it.labels[0] : it, it.id || it.textContent])
      .map(([it, name]) => [it.getBoundingClientRect(), name])
      .filter(([box]) => box.height < 44 || box.width < 44)
      .map(([box, name]) => name + " " + box.width + "x" + box.height),
  );

/** Pictures and checks of one state of the page at all sizes, light and dark. `whenNarrow` makes the state of narrow screens. */
export async function look(trial, page, name, whenNarrow = () => {}) {
  for (const [width, height] of SIZES) {
    await page.setViewportSize({ width, height });
    if (width < 700) await whenNarrow();
    for (const colorScheme of THEMES) {
      await page.emulateMedia({ colorScheme });
      await page.screenshot({ path: `${trial.folder}/${name}-${width}-${colorScheme}.png` });
      assert.deepEqual(await complaints(trial, page), [], name + " " + width + " " + colorScheme);
      assert.ok(await isInside(page), name + " is wider than " + width);
    }
    if (width < 700) assert.deepEqual(await small(page), [], name);
  }
  await page.setViewportSize({ width: 1280, height: 800 });
  await page.emulateMedia({ colorScheme: "light" });
}

export const looks = {
  async "accessible at two widths, light and dark: an empty conversation, code, math, a table, files, thoughts"(
    trial,
    page,
  ) {
    await page.click("#new");
    await page.locator("#empty").waitFor();
    await look(trial, page, "empty");
    await page.setInputFiles("#files", {
      name: "notes.txt",
      mimeType: "text/plain",
      buffer: Buffer.from("Some notes\n".repeat(20)),
    });
    await page.locator("#ask details").waitFor();
    await send(page, "think");
    await idle(page);
    await send(page, "rich");
    await page.locator("article.assistant table").waitFor();
    await idle(page);
    await page.screenshot({ path: trial.folder + "/conversation.png" });
    await setDetails(page, true);
    await page.locator("#figures dd").first().waitFor();
    await look(trial, page, "open");
    await setDetails(page, false);
  },
  async "accessible: tokens with alternatives, whose panel is above the footer; the editor; the search"(
    trial,
    page,
  ) {
    await page.getByRole("button", { name: "Tokens" }).last().click();
    await page.locator(".tokens span").first().click();
    await page.locator(".others button").first().waitFor();
    await page.locator("#talk").evaluate((it) => {
      it.scrollTop = 0;
    });
    await page.locator(".tokens span").first().scrollIntoViewIfNeeded();
    const places = await page.evaluate(() =>
      ["article:last-child .panel", "article:last-child footer", "#ask"]
        .map((it) => document.querySelector(it).getBoundingClientRect())
        .map((it) => [it.top, it.bottom]),
    );
    assert.ok(
      places[0][1] <= Math.max(places[1][0], places[2][0]) + 8 && places[0][1] <= places[2][0] + 1,
      "the panel is in view, above the footer: " + JSON.stringify(places),
    );
    await look(trial, page, "tokens");
    await page.setViewportSize({ width: 390, height: 844 });
    await page.locator("article:last-child .panel").scrollIntoViewIfNeeded();
    await page.click("#menu");
    const menus = [];
    for (const visibility of ["visible", "hidden"]) {
      await page.locator("article:last-child .panel").evaluate((it, value) => {
        it.style.visibility = value;
      }, visibility);
      menus.push(await page.locator("#nav").screenshot());
    }
    assert.ok(menus[0].equals(menus[1]), "the menu is above the panel");
    await page.locator("article:last-child .panel").evaluate((it) => it.removeAttribute("style"));
    await page.click("#menu");
    await page.setViewportSize({ width: 1280, height: 800 });
    await page.getByRole("button", { name: "Text", exact: true }).click();
    await page.getByRole("button", { name: "Edit this answer" }).last().click();
    await look(trial, page, "editor");
    await page.keyboard.press("Escape");
    await page.keyboard.press("Control+k");
    await page.fill("#sought", "t");
    await page.locator("#found button").first().waitFor();
    await look(trial, page, "search");
    await page.keyboard.press("Escape");
  },
  async "a phone's width: the menu opens and closes, and leaves room for all of it"(trial, page) {
    await page.setViewportSize({ width: 390, height: 844 });
    await page.click("#menu");
    await page.locator("#nav.open").waitFor();
    assert.ok(
      (await page.locator("#export-markdown").boundingBox()).y < 844,
      "the list leaves room for the rest of the menu",
    );
    await look(trial, page, "menu", async () => {
      assert.ok(await page.evaluate(() => !$("ask").inert), "a wider screen closed the menu");
      await page.click("#menu");
      await page.locator("#nav.open").waitFor();
    });
    await page.setViewportSize({ width: 390, height: 844 });
    await page.click("#menu");
    await page.keyboard.press("Escape");
    await page.locator("#nav").waitFor({ state: "hidden" });
    assert.ok(await page.evaluate(() => document.activeElement.id === "menu"));
    await page.click("#menu");
    await page.click("#new");
    await page.locator("#empty").waitFor();
    await page.setViewportSize({ width: 1280, height: 800 });
  },
  async "on a phone Enter makes a line, and the button sends"(trial) {
    const context = await trial.browser.newContext({
      viewport: { width: 390, height: 844 },
      hasTouch: true,
      isMobile: true,
    });
    const phone = await trial.open(context);
    await phone.fill("#input", "one");
    await phone.press("#input", "Enter");
    await phone.keyboard.type("two");
    assert.equal(await phone.inputValue("#input"), "one\ntwo");
    await phone.tap("#send");
    await idle(phone);
    assert.equal(trial.proxy.bodies.at(-1).messages.at(-1).content, "one\ntwo");
    assert.deepEqual(await small(phone), []);
    await phone.screenshot({ path: trial.folder + "/phone.png" });
    await context.close();
  },
};
