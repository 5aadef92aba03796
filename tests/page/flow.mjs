// The page in a headless Chromium: node flow.mjs PROGRAM CHROMIUM FOLDER. FOLDER has node_modules with what package.json lists, and
// gets the screenshots. `cargo xtask page` runs it.
import assert from "node:assert/strict";
import { answers } from "./answers.mjs";
import { guide, scripted } from "./conversations.mjs";
import { files } from "./files.mjs";
import { looks } from "./looks.mjs";
import { menu } from "./menu.mjs";
import { messages } from "./messages.mjs";
import { pictures } from "./pictures.mjs";
import { profiles } from "./profiles.mjs";
import { pulls } from "./pulls.mjs";
import { rendering } from "./rendering.mjs";
import { settings } from "./settings.mjs";
import { deaf, speech } from "./speech.mjs";
import { tabs } from "./tabs.mjs";
import { thirdParty } from "./third_party.mjs";
import { Trial } from "./support.mjs";
import { tools } from "./tools.mjs";

const trial = await Trial.start(...process.argv.slice(2));
async function run(steps, page) {
  for (const [name, step] of Object.entries(steps)) {
    const began = performance.now();
    try {
      await step(trial, page);
    } catch (error) {
      await page?.screenshot({ path: trial.folder + "/failed.png" });
      throw new Error(name + " failed; see failed.png in " + trial.folder, { cause: error });
    }
    console.log("ok", name, `(${((performance.now() - began) / 1000).toFixed(1)} s)`);
  }
}
try {
  await trial.serve();
  await run(thirdParty);
  const page = await trial.open();
  await run(guide, page);
  await page.close();

  await trial.serve(...trial.models());
  const other = await trial.open();
  for (const steps of [scripted, answers, rendering, pictures, files, deaf, messages, settings, tabs, menu, looks])
    await run(steps, other);
  assert.deepEqual(
    [trial.foreign, trial.faults, trial.refusals],
    [[], [], []],
    "foreign requests, faults, refusals of the policy",
  );

  await run(
    {
      async "a key is asked for, and --no-page"() {
        await trial.serve("--api-key", "k");
        await other.reload();
        await other.fill("#key", "wrong");
        await other.press("#key", "Enter");
        await other.locator("#hint", { hasText: "The server does not accept this key." }).waitFor();
        await other.fill("#key", "k");
        await other.press("#key", "Enter");
        await other.locator("#locked").waitFor({ state: "hidden" });
        await trial.serve("--no-page");
        assert.equal(
          await (await fetch(trial.proxy.origin, { headers: { accept: "text/html" } })).text(),
          "Ollama is running",
        );
      },
    },
    other,
  );

  await trial.serve(...trial.models(), ...trial.recognizer());
  await other.reload();
  await run(speech, other);

  await trial.serve(...trial.models(), ...trial.profiles());
  await other.reload();
  await run(profiles, other);

  await trial.serve(...trial.models(), ...trial.servers());
  await other.reload();
  await run(tools, other);

  await run(pulls, other);
  assert.deepEqual([trial.faults, trial.refusals], [[], []], "faults, refusals of the policy");
} finally {
  await trial.stop();
}
