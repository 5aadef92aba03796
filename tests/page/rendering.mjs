// Steps: code in colors, math, tables and Copy, as a model writes them.
import assert from "node:assert/strict";
import { ask, last } from "./support.mjs";

/** The colored parts of a text, as the page draws them: class and text. */
const colored = (page, name, text) =>
  page.evaluate(
    ([name, text]) => {
      const code = document.createElement("code");
      drawCode(code, name, text.split("\n"));
      return [code.textContent, ...[...code.children].map((it) => it.className + " " + it.textContent)];
    },
    [name, text],
  );

/** One example for each family of languages, and a part that must be colored. */
const EXAMPLES = [
  ["c", "#include <a.h>\nint x; /* a\nb */", "comment b */"],
  ["tsx", "const a = `x\n${y}`; // z", "comment // z"],
  ["kotlin", "fun f(): Int = 1", "type Int"],
  ["go", "func f() { s := `a\nb` }", "string b`"],
  ["rs", "let a: &'a str = \"x\"; let c = 'c';", "string 'c'"],
  ["python", '"""a\nb""" # c', 'string b"""'],
  ["ruby", "def f; end # c", "keyword def"],
  ["bash", 'echo "$A" # don\'t', "comment # don't"],
  ["SQL", "SELECT 'a' -- b", "keyword SELECT"],
  ["lua", "--[[a\nb]] local x", "keyword local"],
  ["haskell", "{- a\nb -} let x = 1", "comment b -}"],
  ["html", '<a href="x">don\'t</a><!-- a\nb -->', "name href"],
  ["css", "a { color: #fff; }", "name color"],
  ["json", '{"a": true}', 'name "a"'],
  ["toml", "[a]\nb = 'c' # d", "name b"],
  ["yaml", "a: b # c", "name a"],
  ["diff", "+a\n-b", "number -b"],
];

export const rendering = {
  async "code has colors in every language family, and stays the same text"(trial, page) {
    for (const [name, text, part] of EXAMPLES) {
      const [whole, ...parts] = await colored(page, name, text);
      assert.equal(whole, text);
      assert.ok(parts.includes(part), name + ": " + JSON.stringify(parts));
    }
    assert.deepEqual(await colored(page, "unknown", "let x = 1;"), ["let x = 1;"]);
    assert.deepEqual(
      await colored(page, "js", '"' + "a".repeat(3000)),
      ['"' + "a".repeat(3000)],
      "very long lines have no colors",
    );
  },
  async "code that grows is colored line by line, not again from its start"(trial, page) {
    const isSame = await page.evaluate(() => {
      const place = document.createElement("div");
      let text = "```rust\nfn first() {}\n";
      drawMarkdown(place, text);
      const first = place.querySelector(".keyword");
      for (let line = 0; line < 300; line += 1) drawMarkdown(place, (text += "let x = " + line + ";\n"));
      return place.contains(first) && place.querySelectorAll(".keyword").length === 301;
    });
    assert.ok(isSame);
  },
  async "math is drawn, prices are not math, and a formula can neither link nor name elements"(trial, page) {
    await ask(page, "rich");
    const shown = await last(page).evaluate((it) => ({
      inline: it.querySelectorAll("p > math").length,
      blocks: [...it.querySelectorAll(".math math")].map(
        (math) => math.querySelector("mfrac, munderover")?.tagName,
      ),
      written: [...it.querySelectorAll("code.written")].map((code) => code.textContent),
      ids: it.querySelectorAll("[id]").length,
      links: it.querySelectorAll("[href]").length,
    }));
    assert.deepEqual(shown, {
      inline: 2,
      blocks: ["munderover"],
      written: ["\\[ \\label{send} \\href{https://evil.example/m}{x} \\]"],
      ids: 0,
      links: 0,
    });
    assert.ok((await last(page).innerText()).includes("for 5 $ or $6 it is"));
    const named = await page.evaluate(
      () => mathNode("\\label{send} x", true, "").querySelectorAll("[id]").length,
    );
    assert.equal(named, 0, "the page finds its own elements by id");
    await page.screenshot({ path: trial.folder + "/rich.png" });
  },
  async "formulas that cannot end or are too deep are shown as written, in time"(trial, page) {
    const hostile = [
      "\\def\\a{\\a\\a}\\a",
      "\\sqrt".repeat(300) + "x",
      "{".repeat(900) + "x",
      "\\def\\a{\\b\\b}\\def\\b{\\c\\c}\\def\\c{\\d\\d}\\def\\d{xxxx}" + "\\a".repeat(60),
      "x".repeat(3000),
    ];
    for (const source of hostile)
      assert.equal(
        await page.evaluate((it) => mathNode(it, true, "as written").textContent, source),
        "as written",
        source.slice(0, 20),
      );
  },
  async "a table never breaks words, and scrolls if it is wider than its place"(trial, page) {
    for (const width of [1280, 390]) {
      await page.setViewportSize({ width, height: 800 });
      const table = await last(page)
        .locator(".table")
        .evaluate((it) => ({
          scrolls: it.scrollWidth > it.clientWidth,
          lines: [...it.querySelectorAll("td, th")].map((cell) => {
            const range = document.createRange();
            range.selectNodeContents(cell);
            return range.getClientRects().length;
          }),
          page: document.documentElement.scrollWidth,
        }));
      assert.deepEqual(table, { scrolls: true, lines: Array(8).fill(1), page: width });
    }
    await page.setViewportSize({ width: 1200, height: 800 });
  },
  async "Copy says that it copied, also without a clipboard object"(trial, page) {
    await trial.context.grantPermissions(["clipboard-read", "clipboard-write"]);
    const copy = last(page).getByRole("button", { name: "Copy the code" });
    await copy.click();
    await last(page).locator("button", { hasText: "Copied" }).waitFor();
    assert.ok(
      (await page.evaluate(() => navigator.clipboard.readText())).startsWith("/* A\n   comment */\nfn area("),
    );
    await last(page)
      .locator("button", { hasText: /^Copy$/ })
      .waitFor();
    await page.evaluate(() =>
      Object.defineProperty(navigator, "clipboard", { value: undefined, configurable: true }),
    );
    await page.getByRole("button", { name: "Copy this message" }).click();
    await page.locator("article.user button", { hasText: "Copied" }).waitFor();
    await page.evaluate(() => delete navigator.clipboard);
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "rich");
    await trial.context.clearPermissions();
  },
};
