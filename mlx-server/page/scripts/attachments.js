// Files of a message. Images are data URLs, so that they can be stored, exported and sent unchanged; only the four formats that the server
// supports. Text files and the text of PDF files are sent as text.
const IMAGE_URL = /^data:image\/(png|jpeg|webp|gif);base64,/;
const MAX_TEXT_FILE = 4e6,
  MAX_PDF = 64e6,
  MAX_IMAGE = 64e6;
const urlOf = (file) =>
  new Promise((done, fail) => {
    const reader = new FileReader();
    Object.assign(reader, {
      onload: () => done(reader.result),
      onerror: () => fail(reader.error),
    }).readAsDataURL(file);
  });
function limit(file, most) {
  if (file.size > most)
    throw new Error(
      file.name + " has " + sizeText(file.size) + "; at most " + sizeText(most) + " can be attached",
    );
}
async function pictureOf(file) {
  const { value: model } = $("model");
  if (!abilities.get(model)?.vision) throw new Error((model || "The model") + " does not support images");
  limit(file, MAX_IMAGE);
  const url = await urlOf(file);
  if (!IMAGE_URL.test(url)) throw new Error(file.name + " is not a png, jpeg, webp or gif file");
  return url;
}
// Decodes UTF-8, or UTF-16 with a byte order mark. Other files are not text.
async function textOfFile(file) {
  limit(file, MAX_TEXT_FILE);
  const bytes = new Uint8Array(await file.arrayBuffer());
  const mark = bytes.length > 1 ? bytes[0] * 256 + bytes[1] : 0;
  const encoding = mark === 0xfffe ? "utf-16le" : mark === 0xfeff ? "utf-16be" : "utf-8";
  try {
    const text = new TextDecoder(encoding, { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return text.replaceAll("\r\n", "\n");
  } catch {
    /* The error below says what is allowed. */
  }
  throw new Error(file.name + " is neither text, a PDF file nor a png, jpeg, webp or gif image");
}
// Adds a file to a text field, once it is read. Of audio, the field gets the text; returns a message about it.
async function attachFile(field, file) {
  const name = file.name || "file";
  if (isAudio(file)) return transcribeInto(field, file);
  if (/^image\/(?!svg)/.test(file.type)) {
    const url = await pictureOf(file);
    field.pictures.push({ name: file.name || "picture", url });
    return;
  }
  const isPdf = file.type === "application/pdf" || /\.pdf$/i.test(name);
  if (isPdf) limit(file, MAX_PDF);
  const text = await (isPdf ? pdfText(file, flashHint) : textOfFile(file));
  field.files.push({ name, size: file.size, text });
}
function fileNode(it) {
  const text = el("pre", { tabIndex: 0 });
  const title = el("summary", { textContent: it.name + " · " + sizeText(it.size) });
  const details = el("details", {}, title, text);
  // Long texts become elements only if they are shown.
  details.ontoggle = () => {
    text.textContent = details.open ? visible(it.text) : "";
  };
  return details;
}
// The images and files of a message. With `remove`, each has a Remove button.
function attachmentsNode({ pictures = [], files = [] }, remove) {
  const cross = (list, place) =>
    remove ? button("×", "Remove " + list[place].name, () => remove(list, place)) : [];
  const image = (it) => el("img", { src: it.url, alt: it.name, title: it.name, decoding: "async" });
  return el(
    "div",
    { className: "attachments" },
    pictures.map((it, place) => el("span", {}, image(it), cross(pictures, place))),
    files.map((it, place) => el("div", { className: "text" }, fileNode(it), cross(files, place))),
  );
}
// Lets a text field take files, by paste and by `field.attach`. They are shown before the field, with Remove buttons.
function withAttachments(field, { pictures = [], files = [] }) {
  const draw = () => {
    const strip = attachmentsNode(field, (list, place) => {
      list.splice(place, 1);
      draw();
      field.focus();
    });
    field.strip?.replaceWith(strip);
    field.strip = strip;
    field.keep?.();
  };
  field.attach = async (given) => {
    let failure = "",
      done = "";
    field.unread += given.length;
    for (const file of given)
      await attachFile(field, file)
        .then((message) => (done = message ?? done))
        .catch((error) => (failure = error.message.replace(/\.*$/, ".")))
        .finally(() => (field.unread -= 1));
    draw();
    scrollToEnd();
    if (failure || done) flashHint(failure || done);
    else say(plural(field.pictures.length + field.files.length, "file") + " attached.");
  };
  field.onpaste = (event) => {
    // Office programs copy text together with an image of it.
    const { files: pasted, types } = event.clipboardData;
    const isText = types.includes("text/html") && types.includes("text/plain");
    if (!pasted.length || isText) return;
    event.preventDefault();
    field.attach([...pasted]);
  };
  field.attached = () => ({ pictures: field.pictures, files: field.files });
  field.take = () => {
    const taken = field.attached();
    Object.assign(field, { pictures: [], files: [] });
    draw();
    return taken;
  };
  // Returns false while a file is being read, since the message would be sent without it.
  field.checkRead = () => {
    if (field.unread) flashHint("Not sent: a file is still being read.");
    return !field.unread;
  };
  field.isFilled = () => field.value.trim() || field.pictures.length || field.files.length;
  Object.assign(field, { pictures: [...pictures], files: [...files], unread: 0 });
  draw();
  return field;
}
