// Steps: profiles in the list of models.
import assert from "node:assert/strict";
import { ask, last } from "./support.mjs";

export const profiles = {
  async "a profile is chosen like a model, and the page sends none of its values"(trial, page) {
    await page.selectOption("#model", "sailor");
    await page.evaluate(() => {
      $("settings").parentNode.open = true;
    });
    await page.locator('#field-temperature[placeholder="0 profile"]').waitFor();
    assert.equal(await page.locator("#field-min_p").getAttribute("placeholder"), "0.05 default");
    await ask(page, "Hi");
    const { model, messages, temperature, min_p } = trial.proxy.bodies.at(-1);
    assert.deepEqual([model, messages.length, temperature, min_p], ["sailor", 1, undefined, 0.05]);
    assert.equal(await last(page).innerText(), "Hello there.");
    await page.reload();
    await page.locator("#model option", { hasText: "sailor" }).waitFor({ state: "attached" });
    assert.equal(await page.locator("#model").inputValue(), "sailor", "the choice survives");
  },
};
