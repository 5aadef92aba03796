// Steps: text files and PDF files as parts of a message.
import assert from "node:assert/strict";
import { ask, complaints, give, idle, send, stored } from "./support.mjs";

const base64 = (text) => Buffer.from(text).toString("base64");
const blocks = (page, within) => page.locator(within + " .attachments .text details");
const asked = (trial) => trial.proxy.bodies.at(-1).messages.at(-1).content;
const NOTES = "First line\n```js\nlet x = 1;\n```\n",
  MESSAGE = "What is in them?";

/** A PDF file of two pages, printed by the browser. */
async function printed(trial) {
  const page = await trial.context.newPage();
  await page.setContent(
    "<h1>Quarterly figures</h1><p>Revenue grew by 7 % to 12 million.</p><p style='break-before: page'>Second page: Grüße.</p>",
  );
  const pdf = await page.pdf();
  await page.close();
  return pdf;
}

export const files = {
  async "text files are attached, dropped and pasted, become folded blocks, and can be removed"(trial, page) {
    await page.click("#new");
    const [chooser] = await Promise.all([page.waitForEvent("filechooser"), page.click("#attach")]);
    await chooser.setFiles({ name: "notes.md", mimeType: "text/markdown", buffer: Buffer.from(NOTES) });
    await blocks(page, "#ask").first().waitFor();
    await give(page, "drop", "#talk", ["main.rs", base64("fn main() {}\r\n"), ""]);
    await give(
      page,
      "paste",
      "#input",
      ["old.csv", Buffer.from("\ufeffa;ä", "utf16le").toString("base64"), "text/csv"],
      ["gone.txt", base64("x"), "text/plain"],
    );
    await blocks(page, "#ask").nth(3).waitFor();
    assert.deepEqual(await blocks(page, "#ask").allInnerTexts(), [
      "notes.md · 32 bytes",
      "main.rs · 14 bytes",
      "old.csv · 8 bytes",
      "gone.txt · 1 byte",
    ]);
    await page.getByRole("button", { name: "Remove gone.txt" }).click();
    await page.locator("#ask summary", { hasText: "main.rs" }).click();
    await page.locator("#ask .text pre", { hasText: "fn main() {}" }).waitFor();
    await page.screenshot({ path: trial.folder + "/files-before.png" });
  },
  async "files that were not sent stay over a reload"(trial, page) {
    await page.reload();
    await blocks(page, "#ask").nth(2).waitFor();
    assert.equal(await blocks(page, "#ask").count(), 3);
  },
  async "files are sent as text before the message, and stay folded in it"(trial, page) {
    await send(page, MESSAGE);
    await idle(page);
    const expected =
      "File notes.md:\n````md\n" +
      NOTES +
      "````\n\nFile main.rs:\n```rs\nfn main() {}\n```\n\nFile old.csv:\n```csv\na;ä\n```\n\n" +
      MESSAGE;
    assert.equal(asked(trial), expected);
    assert.equal(await blocks(page, "#ask").count(), 0);
    await page.reload();
    await idle(page);
    const sent = blocks(page, "article.user");
    assert.deepEqual(await sent.allInnerTexts(), [
      "notes.md · 32 bytes",
      "main.rs · 14 bytes",
      "old.csv · 8 bytes",
    ]);
    await sent.first().locator("summary").click();
    // The text is drawn by the event of the fold, which follows the click.
    await sent.first().locator("pre", { hasText: "First line" }).waitFor();
    assert.equal(await sent.first().locator("pre").textContent(), NOTES);
    await page.screenshot({ path: trial.folder + "/files-after.png" });
    assert.deepEqual(await complaints(trial, page), []);
  },
  async "a message that is edited keeps its files but those that are removed"(trial, page) {
    await page.getByRole("button", { name: "Edit this message" }).click();
    await page.getByRole("button", { name: "Remove notes.md" }).click();
    await page.getByRole("button", { name: "Send as a branch" }).click();
    await page.locator("article.user", { hasText: "2/2" }).waitFor();
    await idle(page);
    assert.ok(asked(trial).startsWith("File main.rs:\n"), asked(trial));
    await page.getByRole("button", { name: "Earlier branch" }).click();
    await page.getByText("1/2").waitFor();
    assert.equal(await blocks(page, "article.user").count(), 3, "the message before keeps its files");
  },
  async "a message is not sent while a file of it is being read"(trial, page) {
    await page.click("#new");
    await page.evaluate(() => {
      const file = new File(["late"], "late.txt");
      const read = new Promise((done) => {
        window.finishReading = done;
      });
      file.arrayBuffer = () => read.then(() => new Blob(["late"]).arrayBuffer());
      $("input").attach([file]);
    });
    const before = trial.proxy.bodies.length;
    await send(page, MESSAGE);
    await page.locator("#hint", { hasText: "Not sent: a file is still being read." }).waitFor();
    assert.equal(await page.inputValue("#input"), MESSAGE, "the message stays");
    await page.evaluate(() => finishReading());
    await blocks(page, "#ask").first().waitFor();
    await page.press("#input", "Enter");
    await idle(page);
    assert.equal(trial.proxy.bodies.length, before + 1);
    assert.equal(asked(trial), "File late.txt:\n```txt\nlate\n```\n\n" + MESSAGE);
  },
  async "the text of a PDF file is sent, and its reader is loaded only then"(trial, page) {
    const requests = [];
    page.on("request", (it) => {
      if (it.url().endsWith("/pdf-reader")) requests.push(it.url());
    });
    await ask(page, "Hi");
    assert.deepEqual(requests, []);
    await give(page, "drop", "#talk", [
      "figures.pdf",
      (await printed(trial)).toString("base64"),
      "application/pdf",
    ]);
    await blocks(page, "#ask").first().waitFor();
    assert.equal(requests.length, 1);
    await page.press("#input", "Enter");
    await page.locator("article.user").nth(1).waitFor();
    await idle(page);
    assert.match(
      asked(trial),
      /^File figures\.pdf:\n```\nQuarterly figures\n+Revenue grew by 7 % to 12 million\.\n+Second page: Grüße\.\n```$/,
    );
    assert.match(await page.locator("#list li.now").innerText(), /^Hi/);
    assert.equal(await page.locator("iframe").count(), 0, "the frame is gone");
  },
  async "files that are no text have a reason, and a frame of a hostile file reaches nothing"(trial, page) {
    await page.click("#new");
    const refused = async (name, bytes, type, reason) => {
      await give(page, "drop", "#talk", [name, Buffer.from(bytes).toString("base64"), type]);
      await page.locator("#hint", { hasText: reason }).waitFor();
    };
    await refused(
      "damaged.pdf",
      "%PDF-1.4 nothing",
      "application/pdf",
      "damaged.pdf cannot be read as PDF: ",
    );
    await refused(
      "program",
      [127, 69, 76, 70, 0, 1],
      "",
      "program is neither text, a PDF file nor a png, jpeg, webp or gif image.",
    );
    await refused("latin.txt", [228], "text/plain", "latin.txt is neither text");
    await page.setInputFiles("#files", trial.large("large.txt", 4100000, 97));
    await page
      .locator("#hint", { hasText: "large.txt has 4.1 MB; at most 4.0 MB can be attached" })
      .waitFor();
    assert.equal(await blocks(page, "#ask").count(), 0);
    // A script in the frame has no origin, and its policy lets no request out.
    const reached = await page.evaluate(async () => {
      const frame = openReader();
      await new Promise((done) => {
        frame.answer = (it) => it.isReady && done();
      });
      const tried = [() => frame.contentDocument, () => frame.contentWindow.document].map((it) => {
        try {
          return it() ?? null;
        } catch {
          return null;
        }
      });
      frame.remove();
      return tried;
    });
    assert.deepEqual(reached, [null, null]);
  },
  async "an import and an export keep files"(trial, page) {
    const node = {
      role: "user",
      content: "Read.",
      files: [{ name: "a.txt", size: 3, text: "abc" }, { name: 5, text: 6 }, 7],
    };
    await page.setInputFiles("#file", {
      name: "export.json",
      mimeType: "application/json",
      buffer: Buffer.from(
        JSON.stringify({
          conversations: [
            {
              title: "with files",
              leaf: "x",
              nodes: { x: node },
              fields: { messages: "[]", stream: "false", top_p: "0.5" },
            },
          ],
        }),
      ),
    });
    await page.locator("#hint", { hasText: "1 conversation was imported." }).waitFor();
    assert.deepEqual((await stored(page, "nodes")).find((it) => it.content === "Read.").files, [
      { name: "a.txt", size: 3, text: "abc" },
    ]);
    const imported = (await stored(page, "talks")).find((it) => it.title === "with files");
    assert.deepEqual(imported.fields, { top_p: "0.5" }, "a file sets no field that the page sets");
  },
};
