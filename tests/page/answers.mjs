// Steps: what a model writes, as the page shows it, from real streams of a model that follows a script.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { ask, idle, last, send, stored } from "./support.mjs";

// Parts of texts; random sequences of them are cut at every place.
const PARTS = [
  "\n",
  "\n\n",
  "- a",
  "  - b",
  "1. c",
  "2",
  ". ",
  "   d",
  "```",
  "```js\n",
  "~~~",
  "|x|y|",
  "|--|:-:|",
  "> q",
  "# h",
  "---",
  "*",
  "**",
  "_",
  "`",
  "[t](https://a.example/(b))",
  "\\*",
  "word ",
  "<br>",
  "\u001b",
  "é",
  "$",
  "$$",
  "$$\n",
  "x^2",
  "\\(",
  "\\)",
  "\\[",
  "\\]\n",
  "/*",
  "*/",
  '"',
  "'",
  "`x",
];

export const answers = {
  async "what a hostile model writes is text: nothing runs, nothing is loaded, and only http links are links"(
    trial,
    page,
  ) {
    await ask(page, "hostile");
    const text = await last(page).innerText();
    for (const part of [
      "<script>window.hit=1</script>",
      "<img src=x onerror=",
      "<svg onload",
      "<style>body",
      "[run](javascript:",
      "[local](file:",
      "␛[31mred␛[0m",
      "<b onclick=",
      "<iframe src=x>",
      "data: [DONE]",
    ])
      assert.ok(text.includes(part), part + " in " + text);
    const known = new Set(
      "A P EM STRONG CODE PRE DIV SPAN HEADER BUTTON TABLE THEAD TBODY TR TH TD BR".split(" "),
    );
    assert.deepEqual(
      await last(page)
        .evaluate((it) => [...it.querySelectorAll("*")].map((node) => node.tagName))
        .then((all) => all.filter((name) => !known.has(name))),
      [],
    );
    assert.deepEqual(
      await last(page)
        .locator("a")
        .evaluateAll((all) => all.map((it) => it.href)),
      ["https://evil.example/x.png", "https://fine.example/a_(b)"],
    );
    assert.equal(await page.evaluate(() => window.hit), undefined);
    assert.deepEqual(trial.refusals, [], "the policy was never needed");
  },
  async "the policy stops what the page's script would let through"(trial, page) {
    const made = await page.evaluate(() => {
      const script = document.createElement("script");
      const markup = () => {
        document.createElement("div").innerHTML = "<img src=x onerror='window.hit=1'>";
      };
      try {
        markup();
        return "markup";
      } catch {
        /* Trusted types refuse markup. */
      }
      try {
        script.textContent = "window.hit=1";
        document.body.append(script);
      } catch {
        /* And scripts. */
      }
      return window.hit;
    });
    assert.equal(made, undefined);
    trial.refusals.length = 0;
  },
  async "Markdown: nested lists, code in them, tables, quotes, marks within words"(trial, page) {
    await ask(page, "marked");
    const shape = await last(page).evaluate((it) => {
      const read = (query) => [...it.querySelectorAll(query)].map((node) => node.textContent);
      return {
        deep: read("ol > li > ul > li > ul > li > em"),
        code: read("ol > li pre"),
        starts: [...it.querySelectorAll("ol")].map((list) => [list.start, list.children.length]),
        sides: [...it.querySelectorAll("td")].map((cell) => cell.className + ":" + cell.textContent),
        quote: read("blockquote"),
        rules: it.querySelectorAll("hr").length,
        both: read("strong > em"),
        gone: read("del"),
        links: read("a"),
      };
    });
    assert.deepEqual(shape, {
      deep: ["deep"],
      code: ["fn main() {}\n\n// end"],
      starts: [[1, 3]],
      sides: [":a|b", "right:1", ":c", "right:22"],
      quote: ["quoted\ntext"],
      rules: 1,
      both: ["both"],
      gone: ["gone"],
      links: ["https://fine.example/x"],
    });
    assert.ok((await last(page).innerText()).includes("A snake_case name, 2 * 3 * 4,"));
    await page.screenshot({ path: trial.folder + "/marked.png" });
  },
  async "Tokens: the lines of a text stay lines, and a key shows a token's alternatives"(trial, page) {
    await page.getByRole("button", { name: "Tokens" }).click();
    const answers = (await stored(page, "nodes")).filter((it) => it.role === "assistant");
    const written = answers.sort((a, b) => a.at - b.at).at(-1).content;
    assert.equal(await page.locator(".tokens").innerText(), written.trimEnd());
    // What follows the end of a line begins at the left edge.
    const starts = await page.locator(".tokens").evaluate((it) => {
      const all = [...it.children],
        begins = (token, index) =>
          index && all[index - 1].textContent.endsWith("\n") && !token.textContent.startsWith("\n");
      return all
        .filter(begins)
        .map((token) => Math.round(token.getClientRects()[0].left - it.getBoundingClientRect().left));
    });
    assert.ok(starts.length > 3 && starts.every((it) => it === 0), JSON.stringify(starts));
    await page.locator(".tokens span").nth(1).press("Enter");
    assert.ok((await page.locator(".others button").count()) > 0);
    await page.getByRole("button", { name: "Text", exact: true }).click();
  },
  async "a text that grows is drawn as if it came at once"(trial, page) {
    const differing = await page.evaluate((parts) => {
      let state = 7;
      const random = (below) => {
        state = (state * 48271) % 2147483647;
        return state % below;
      };
      for (let round = 0; round < 300; round += 1) {
        const text = Array.from({ length: 1 + random(24) }, () => parts[random(parts.length)]).join("");
        const grown = document.createElement("div"),
          whole = document.createElement("div");
        for (let end = 1; end <= text.length; end += 1) drawMarkdown(grown, text.slice(0, end));
        drawMarkdown(whole, text);
        if (!grown.isEqualNode(whole)) return text;
      }
      return null;
    }, PARTS);
    assert.equal(differing, null);
  },
  async "what is complete is not drawn again while an answer grows"(trial, page) {
    const same = await page.evaluate(() => {
      const place = document.createElement("div"),
        text = "A paragraph.\n\n```\ncode\n```\n\n- a list\n\n";
      drawMarkdown(place, text);
      const before = [...place.childNodes];
      for (let count = 1; count < 200; count += 1) drawMarkdown(place, text + "word word\n\n".repeat(count));
      return (
        before.length === 3 &&
        place.childNodes.length === 202 &&
        before.every((node, index) => place.childNodes[index] === node)
      );
    });
    assert.ok(same);
  },
  async "long texts without an end to their marks do not hold the page up"(trial, page) {
    const texts = [
      "*a ",
      "**a",
      "`",
      "``a`",
      "[",
      "[a](",
      "![",
      "_a",
      "~~",
      "<",
      "> ",
      "- ",
      "|",
      "# #",
      "\\",
      "https://",
      "1. \n",
      "- \n\n",
      "|-|\n",
      "$a ",
      "$",
      "$$",
      "\\(",
      "\\[\n",
      "$$\n",
    ].map((it) => it.repeat(60000 / it.length));
    assert.equal(
      await page.evaluate((texts) => {
        for (const text of texts) drawMarkdown(document.createElement("div"), text);
        return texts.length;
      }, texts),
      texts.length,
    );
  },
  async "thoughts are folded"(trial, page) {
    await ask(page, "think");
    const thought = page.locator("article.assistant details", { hasText: "Thoughts" });
    assert.equal(await last(page).innerText(), "Seven.");
    assert.equal(await thought.locator("pre").isVisible(), false);
    await thought.locator("summary").click();
    assert.equal(await thought.locator("pre").innerText(), "Hm, let me see.");
  },
  async "calls of tools are shown, and go on with results"(trial, page) {
    await page.click("#new");
    await page.locator("#settings").click();
    await page.getByText("All request fields").click();
    await page
      .getByLabel("tools", { exact: true })
      .fill(
        JSON.stringify([
          {
            type: "function",
            function: {
              name: "add",
              parameters: { type: "object", properties: { a: { type: "integer" }, b: { type: "integer" } } },
            },
          },
        ]),
      );
    await page.getByLabel("tools", { exact: true }).press("Tab");
    await send(page, "Add three and four.");
    await page.getByText("Tool call: add").waitFor();
    // Its arguments are written piece by piece.
    await idle(page);
    assert.deepEqual(JSON.parse(await page.locator(".call pre").innerText()), { a: 3, b: 4 });
    await page.getByLabel("Result of add").fill("7");
    await page.getByRole("button", { name: "Send results" }).click();
    await page.locator("article.assistant .body", { hasText: "The sum is known." }).waitFor();
    await idle(page);
    const { messages } = trial.proxy.bodies.at(-1);
    assert.deepEqual(
      messages.map((it) => it.role),
      ["user", "assistant", "tool"],
    );
    assert.equal(messages[2].content, "7");
    assert.equal(messages[2].tool_call_id, messages[1].tool_calls[0].id);
    await page.getByText("All request fields").click();
    await page.locator("#settings").click();
  },
  async "an export that is imported is the same conversation"(trial, page) {
    await ask(page, "think about an export");
    const [download] = await Promise.all([page.waitForEvent("download"), page.click("#export")]);
    const text = readFileSync(await download.path(), "utf8");
    const load = (given) =>
      page.setInputFiles("#file", {
        name: "export.json",
        mimeType: "application/json",
        buffer: Buffer.from(given),
      });
    await load(
      JSON.stringify({
        conversations: [
          JSON.parse(text).conversations.find((it) => it.title === "think about an export"),
          { nodes: { x: { role: "system", content: 5 }, y: 7 }, fields: [1] },
          3,
        ],
      }),
    );
    await page.locator("#hint", { hasText: "1 conversation was imported." }).waitFor();
    assert.equal(await page.locator("#list li", { hasText: "think about an export" }).count(), 2);
    const [one, other] = (await stored(page, "talks"))
      .filter((it) => it.title === "think about an export")
      .map((it) => it.id);
    const nodes = (await stored(page, "nodes")).sort((a, b) => b.role.localeCompare(a.role)),
      of = (id) =>
        nodes
          .filter((it) => it.talk === id)
          .map(({ role, content, thought, model, seed, end }) => ({
            role,
            content,
            thought,
            model,
            seed,
            end,
          }));
    assert.deepEqual(of(one), of(other));
    assert.deepEqual(await page.locator("#talk .body").allInnerTexts(), ["think about an export", "Seven."]);
    await load("no JSON");
    await page.locator("#hint", { hasText: "This file is not an export of this page" }).waitFor();
  },
};
