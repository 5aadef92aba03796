// Speech: the microphone and audio files become text in a message field, by a speech recognizer of this server.
const AUDIO_FILE = /\.(wav|flac|mp3|m4a|m4b|aac|ogg|oga|opus|weba)$/i;
// The browser decodes other files, such as recordings, to short WAV files.
const SERVER_DECODES = /\.(wav|flac|mp3|m4a|m4b|aac)$/i;
const SPEECH_RATE = 16000;
const isAudio = (file) => file.type.startsWith("audio/") || AUDIO_FILE.test(file.name);
const speechModel = () => models.find((it) => it.capabilities?.includes("transcription"))?.id;
// The recording, and the transcriptions that run.
let recording = null;
const transcriptions = new Set();
// Samples as a WAV file, mono in 16 bits.
function wavOf(samples) {
  const data = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const text = (place, letters) =>
    [...letters].forEach((letter, at) => data.setUint8(place + at, letter.charCodeAt(0)));
  text(0, "RIFF");
  data.setUint32(4, 36 + 2 * samples.length, true);
  text(8, "WAVEfmt ");
  data.setUint32(16, 16, true);
  data.setUint16(20, 1, true);
  data.setUint16(22, 1, true);
  data.setUint32(24, SPEECH_RATE, true);
  data.setUint32(28, 2 * SPEECH_RATE, true);
  data.setUint16(32, 2, true);
  data.setUint16(34, 16, true);
  text(36, "data");
  data.setUint32(40, 2 * samples.length, true);
  samples.forEach((it, at) => {
    data.setInt16(44 + 2 * at, Math.round(32767 * Math.max(-1, Math.min(1, it))), true);
  });
  return new Blob([data], { type: "audio/wav" });
}
// Decodes a file that only the browser can decode.
async function decoded(file) {
  const context = new OfflineAudioContext(1, 1, SPEECH_RATE);
  const audio = await context.decodeAudioData(await file.arrayBuffer()).catch(() => {
    throw new Error(file.name + " cannot be decoded by this browser");
  });
  const channels = Array.from({ length: audio.numberOfChannels }, (_, at) => audio.getChannelData(at));
  const mono = channels[0].map((_, at) => channels.reduce((sum, it) => sum + it[at], 0) / channels.length);
  return wavOf(mono);
}
// Adds a text at the cursor of a field.
function insertText(field, text) {
  const { selectionStart: start, value } = field;
  const space = start > 0 && !/\s/.test(value[start - 1]) ? " " : "";
  field.setRangeText(space + text, start, field.selectionEnd, "end");
  field.dispatchEvent(new Event("input"));
}
// Transcribes a file into a field. A cancelled transcription adds the text so far.
async function transcribeInto(field, file) {
  const model = speechModel();
  if (!model)
    throw new Error(file.name + " was not transcribed: the server has no speech recognizer, such as Whisper");
  const run = new AbortController();
  transcriptions.add(run);
  showMicrophone();
  let text = "";
  try {
    showProgress("Transcribing " + file.name + ".");
    const form = new FormData();
    form.append("file", SERVER_DECODES.test(file.name) ? file : await decoded(file), file.name);
    for (const [name, value] of Object.entries({ model, stream: true, priority: "normal" }))
      form.append(name, value);
    const reply = await request("v1/audio/transcriptions", {
      method: "POST",
      body: form,
      signal: run.signal,
    });
    for await (const event of events(reply)) {
      if (event.error) throw new Error(event.error.message);
      text += event.delta ?? "";
      showProgress("Transcribing " + file.name + ": … " + visible(text.slice(-60)));
    }
  } catch (error) {
    if (error instanceof Unreachable) onUnreachable();
    if (error.name !== "AbortError")
      throw new Error(file.name + " was not transcribed: " + (error.message || "the server does not respond"));
  } finally {
    transcriptions.delete(run);
    showProgress();
    showMicrophone();
    if (text) insertText(field, text);
  }
  return file.name + (text ? " was transcribed." : " has no speech.");
}
// The button records, stops the recording, or cancels the transcriptions.
function showMicrophone() {
  const isBusy = transcriptions.size > 0;
  const canRecord = navigator.mediaDevices && window.MediaRecorder && speechModel();
  $("microphone").hidden = !canRecord && !isBusy && !recording;
  const [symbol, name] = recording
    ? ["■", "Stop recording"]
    : isBusy
      ? ["×", "Cancel the transcription"]
      : ["🎤", "Record speech"];
  Object.assign($("microphone"), { textContent: symbol, title: name });
  $("microphone").setAttribute("aria-label", name);
  $("microphone").classList.toggle("recording", Boolean(recording));
}
async function record() {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const recorder = new MediaRecorder(stream);
  const parts = [],
    begin = performance.now();
  recording = recorder;
  recorder.ondataavailable = (event) => {
    parts.push(event.data);
    if (recording) showProgress("Recording: " + Math.round((performance.now() - begin) / 1000) + " s.");
  };
  recorder.onstop = () => {
    for (const track of stream.getTracks()) track.stop();
    recording = null;
    showProgress();
    showMicrophone();
    $("input").attach([new File(parts, "The recording", { type: "audio/webm" })]);
  };
  recorder.start(500);
  say("Recording.");
  showMicrophone();
}
$("microphone").onclick = () => {
  if (recording) recording.stop();
  else if (transcriptions.size) for (const run of transcriptions) run.abort();
  else
    record().catch((error) => {
      flashHint("The microphone cannot be used: " + error.message.replace(/\.*$/, "."));
    });
};
