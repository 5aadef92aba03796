// Steps: the microphone and audio files, with a speech recognizer of random weights. The browser's microphone plays tests/golden/audio/tone.wav.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { complaints, give, root } from "./support.mjs";

const golden = (name) => readFileSync(join(root, "tests/golden/audio", name));
const drop = (page, name, type = "") =>
  give(page, "drop", "#talk", [name, golden(name).toString("base64"), type]);
const button = (page, name) => page.getByRole("button", { name, exact: true });

/** Runs `act`, which sends the file `name`; gives the file that the server got. Its text must be in the message. */
async function heard(trial, page, name, act) {
  await page.fill("#input", "Note:");
  await act();
  await page.locator("#hint", { hasText: new RegExp(`^${name} (was transcribed|has no speech)`) }).waitFor();
  const events = trial.proxy.events.filter((it) => it.startsWith("data: {")).map((it) => JSON.parse(it.slice(6)));
  assert.equal(events.at(-1).type, "transcript.text.done");
  const text = events.map((it) => it.delta ?? "").join("");
  // A text field has one kind of line break.
  assert.equal(await page.inputValue("#input"), ("Note:" + (text && " ") + text).replace(/\r\n?/g, "\n"));
  const body = trial.proxy.audio.at(-1),
    start = body.indexOf("\r\n\r\n", body.indexOf('filename="')) + 4;
  return body.subarray(start, body.indexOf("\r\n--", start));
}

/** Checks a WAV file with 16 kHz and gives its loudest sample. */
function peak(wav) {
  assert.deepEqual([wav.toString("latin1", 0, 4), wav.readUInt16LE(22), wav.readUInt32LE(24)], ["RIFF", 1, 16000]);
  assert.equal(wav.readUInt32LE(40), wav.length - 44);
  const samples = Array.from({ length: (wav.length - 44) / 2 }, (_, at) => wav.readInt16LE(44 + 2 * at));
  return samples.reduce((most, it) => Math.max(most, Math.abs(it)), 0);
}

export const deaf = {
  async "without a speech recognizer there is no microphone, and an audio file has a reason"(trial, page) {
    await page.click("#new");
    await page.locator("#microphone").waitFor({ state: "hidden" });
    await drop(page, "tone.wav");
    await page
      .locator("#hint", { hasText: "tone.wav was not transcribed: the server has no speech recognizer" })
      .waitFor();
  },
};

export const speech = {
  async "a recording becomes text in the message"(trial, page) {
    await page.click("#new");
    await button(page, "Record speech").waitFor();
    assert.equal(await page.locator("#model option", { hasText: "listening" }).count(), 0, "it cannot chat");
    const file = await heard(trial, page, "The recording", async () => {
      await button(page, "Record speech").click();
      await page.locator("#hint", { hasText: /Recording: [1-9]/ }).waitFor();
      assert.deepEqual(await complaints(trial, page), []);
      await button(page, "Stop recording").click();
    });
    assert.ok(peak(file) > 1000, "the microphone was heard");
    await button(page, "Record speech").waitFor();
  },
  async "dropped audio files become text; the browser decodes Opus"(trial, page) {
    const file = await heard(trial, page, "tone.mp3", () => drop(page, "tone.mp3", "audio/mpeg"));
    assert.ok(file.equals(golden("tone.mp3")), "it is sent unchanged");
    assert.ok(peak(await heard(trial, page, "tone.opus", () => drop(page, "tone.opus"))) > 1000);
  },
  async "a damaged file has a reason, and a transcription can be cancelled"(trial, page) {
    await page.fill("#input", "Unchanged");
    await give(page, "drop", "#talk", ["cut.wav", Buffer.from("RIFF").toString("base64"), "audio/wav"]);
    await page.locator("#hint", { hasText: "cut.wav was not transcribed: file" }).waitFor();
    trial.proxy.isMute = true;
    await drop(page, "tone.flac");
    await button(page, "Cancel the transcription").click();
    await button(page, "Record speech").waitFor();
    trial.proxy.isMute = false;
    assert.equal(await page.inputValue("#input"), "Unchanged");
    await page.fill("#input", "");
  },
};
