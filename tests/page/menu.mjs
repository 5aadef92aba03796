// Steps: request fields, models, figures of the server, and the keyboard.
import assert from "node:assert/strict";
import { ask, idle, last, send } from "./support.mjs";

export const menu = {
  async "every field that the API describes can be set, and is sent"(trial, page) {
    await page.click("#new");
    await page.locator("#settings").click();
    await page.getByText("All request fields").click();
    const names = await page
      .locator("#fields label, #advanced label")
      .evaluateAll((all) => all.map((it) => it.firstChild.textContent));
    for (const name of "temperature top_p top_k min_p typical_p xtc_probability xtc_threshold seed logit_bias frequency_penalty presence_penalty repetition_penalty penalty_last_n dry_multiplier dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers max_tokens stop ignore_eos exact priority tools tool_choice response_format structured_outputs reasoning_effort context_policy chat_template_kwargs".split(
      " ",
    ))
      assert.ok(names.includes(name), name + " is not in " + names);
    await page.fill("#system", "Be brief.");
    await page.fill("#field-temperature", "0");
    await page.fill("#field-dry_sequence_breakers", '["\\n"]');
    await page.selectOption("#field-priority", "high");
    await page.selectOption("#field-exact", "true");
    await send(page, "Hi");
    await idle(page);
    const body = trial.proxy.bodies.at(-1);
    assert.deepEqual(
      [body.messages[0].content, body.temperature, body.dry_sequence_breakers, body.priority, body.exact],
      ["Be brief.", 0, ["\n"], "high", true],
    );
    await page.locator("footer", { hasText: "-exact" }).waitFor();
    await page.fill("#field-dry_sequence_breakers", "5");
    await send(page, "Hi");
    await page.locator(".note", { hasText: "dry_sequence_breakers" }).waitFor();
    await page.click("#reset");
    await page.getByRole("button", { name: "Try again" }).click();
    await idle(page);
    assert.equal(await last(page).innerText(), "Hello there.");
    await page.getByText("All request fields").click();
    await page.locator("#settings").click();
  },
  async "the sampling of chats is the server's, is shown and sent, and a field overrides it"(trial, page) {
    await page.click("#new");
    const { data } = await (await fetch(trial.proxy.origin + "/v1/models")).json(),
      known = data.find((it) => it.id === "scripted").chat_sampling;
    assert.deepEqual(
      [known.temperature, known.min_p],
      [
        { value: 0.8, source: "default" },
        { value: 0.05, source: "default" },
      ],
    );
    const shown = (name) => page.locator("#field-" + name).getAttribute("placeholder");
    assert.deepEqual([await shown("temperature"), await shown("min_p")], ["0.8 default", "0.05 default"]);
    await send(page, "Hi");
    await idle(page);
    assert.deepEqual([trial.proxy.bodies.at(-1).temperature, trial.proxy.bodies.at(-1).min_p], [0.8, 0.05]);
    await page.locator("#settings").click();
    await page.fill("#field-min_p", "0");
    await send(page, "Hi");
    await page.getByText("Hello there.").nth(1).waitFor();
    await idle(page);
    assert.deepEqual([trial.proxy.bodies.at(-1).temperature, trial.proxy.bodies.at(-1).min_p], [0.8, 0]);
    await page.locator("#settings").click();
  },
  async "an answer that ends in a loop has a note, and the context is counted in thousands"(trial, page) {
    await page.click("#new");
    await page.locator("#settings").click();
    await page.getByText("All request fields").click();
    await page.fill("#field-logit_bias", '{"40": 100}');
    await page.fill("#field-max_tokens", "150");
    await send(page, "Hi");
    await page.locator(".note", { hasText: "The answer repeats itself." }).waitFor();
    await idle(page);
    await page.locator("footer", { hasText: /context \d+ of 128k/ }).waitFor();
    await page.click("#reset");
    await page.getByText("All request fields").click();
    await page.locator("#settings").click();
    await ask(page, "Hi");
    assert.equal(await page.locator(".note:visible").count(), 0);
  },
  async "a model is switched, and the page says which are loaded"(trial, page) {
    const loaded = () => page.locator("#model option").allTextContents();
    assert.ok(
      (await loaded()).some((it) => it.startsWith("random") && !it.includes("loaded")),
      await loaded(),
    );
    await page.click("#new");
    await page.selectOption("#model", "random");
    await page.locator("#settings").click();
    await page.fill("#field-max_tokens", "4");
    // Drawn tokens would end the text early once in a while.
    await page.fill("#field-temperature", "0");
    await page.locator("#settings").click();
    await send(page, "Hi");
    await idle(page);
    await page.locator("footer", { hasText: "random · " }).waitFor();
    await page.locator("footer", { hasText: "length limit reached" }).waitFor();
    await page
      .locator("#model option", { hasText: /random · loaded · \d+ tokens/ })
      .waitFor({ state: "attached" });
    await page.click("#new");
    await page.selectOption("#model", "scripted");
  },
  async "the figures of the server are those of /metrics"(trial, page) {
    await page.locator("#server summary").click();
    await page.locator("#figures dd").nth(11).waitFor();
    const text = await (await fetch(trial.proxy.origin + "/metrics")).text();
    const sum = (name) =>
      [...text.matchAll(new RegExp("^" + name + "\\{.* (\\d+)$", "gm"))].reduce(
        (all, it) => all + Number(it[1]),
        0,
      );
    const shown = async (name) =>
      page.locator("#figures dt", { hasText: name }).locator("xpath=following-sibling::dd[1]").innerText();
    assert.equal(await shown("Finished"), String(sum("mlx_requests_finished_total")));
    assert.equal(await shown("Prompt tokens computed"), String(sum("mlx_prompt_tokens_total")));
    assert.match(await shown("Memory used"), /^\d+\.\d\d of \d+\.\d\d GiB$/);
    await page.locator("#server summary").click();
  },
  async "everything can be reached with the keyboard alone"(trial, page) {
    trial.proxy.hold();
    await page.keyboard.press("Control+Shift+O");
    await page.keyboard.type("count");
    await page.keyboard.press("Enter");
    await page.locator("article.assistant .body", { hasText: "three" }).waitFor();
    await page.keyboard.press("Escape");
    await idle(page);
    await page.locator("footer", { hasText: "stopped" }).waitFor();
    trial.proxy.release();
    const goTo = async (name, key) => {
      for (let steps = 0; steps < 40; steps += 1) {
        await page.keyboard.press(key);
        if ((await page.evaluate(() => document.activeElement.textContent)) === name) return;
      }
      assert.fail("the keyboard does not reach " + name);
    };
    await goTo("Regenerate", "Shift+Tab");
    await page.keyboard.press("Enter");
    await page.getByText("2/2").waitFor();
    await idle(page);
    assert.equal(
      await page.evaluate(() => document.activeElement.id),
      "input",
      "the focus went to Stop, and from there to the message",
    );
    await page.keyboard.press("ArrowUp");
    await page.keyboard.type(" more");
    await page.keyboard.press("Escape");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Edit");
  },
};
