// Elements, messages to the user, and the clipboard.
"use strict";
const $ = (id) => document.getElementById(id);
const el = (tag, props = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), props);
  for (const child of children.flat()) node.append(child);
  return node;
};
const button = (text, name, act) => {
  const it = el("button", { type: "button", className: "small", textContent: text, onclick: act });
  if (name) it.setAttribute("aria-label", name);
  return it;
};
const newId = () => {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
};
const say = (text) => {
  $("status").textContent = text;
};
// The line below the message field: its permanent text, and temporary messages.
let permanentHint = $("hint").textContent;
const setHint = (text) => {
  permanentHint = $("hint").textContent = text;
};
let hintTimer;
const flashHint = (text) => {
  $("hint").textContent = text;
  say(text);
  clearTimeout(hintTimer);
  hintTimer = setTimeout(() => {
    $("hint").textContent = permanentHint;
  }, 8000);
};
// Shows the progress of some work; without a text, its end.
const showProgress = (text = permanentHint) => {
  clearTimeout(hintTimer);
  $("hint").textContent = text;
};
// Control characters are invisible here, but could run commands when pasted into a terminal. They are shown as control pictures.
const visible = (text) =>
  text.replace(/[\0-\x08\x0b-\x1f\x7f]/g, (it) =>
    it === "\r" ? "" : it === "\x7f" ? "␡" : String.fromCharCode(0x2400 + it.charCodeAt(0)),
  );
// Like visible, for a text that the user has to approve: characters that hide, join or reverse text are shown as codes.
const HIDDEN = /[\p{Cf}\p{Zl}\p{Zp}\x80-\x9f\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0]/gu;
const codeOf = (it) => [...it].map((letter) => "\\u{" + letter.codePointAt(0).toString(16) + "}").join("");
const revealed = (text) => visible(text).replace(HIDDEN, codeOf);
// Returns false if the browser does not allow it. Browsers have no clipboard object on a page without https, except on localhost.
async function copy(text) {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(visible(text)).then(
      () => true,
      () => false,
    );
  }
  const field = el("textarea", { value: visible(text), className: "aside" });
  const active = document.activeElement;
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  active?.focus();
  return isCopied;
}
// A button that reports for two seconds that it copied.
function copyButton(name, textOf) {
  const it = button("Copy", name, async () => {
    const isCopied = await copy(textOf());
    it.textContent = isCopied ? "Copied" : "Not copied";
    say(isCopied ? "Copied." : "The browser does not allow copying.");
    clearTimeout(it.timer);
    it.timer = setTimeout(() => {
      it.textContent = "Copy";
    }, 2000);
  });
  return it;
}
// Offers a text as a file.
function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
// A text in `area`: localStorage or sessionStorage. A browser that forbids storage throws at the first mention of either.
function readText(area, name) {
  try {
    return window[area].getItem(name);
  } catch {
    return null;
  }
}
// Returns false if storage is forbidden or full.
function writeText(area, name, text) {
  try {
    window[area].setItem(name, text);
    return true;
  } catch {
    return false;
  }
}
// A value of this browser that outlives the tab, or null. Storage may contain another program's text.
function readStored(name) {
  try {
    return JSON.parse(readText("localStorage", name));
  } catch {
    return null;
  }
}
function writeStored(name, value) {
  if (!writeText("localStorage", name, JSON.stringify(value)))
    flashHint("This browser does not allow storage, or it is full; this was not stored.");
}
const plural = (count, noun) => count + " " + noun + (count === 1 ? "" : "s");
const sizeText = (bytes) =>
  bytes < 1000
    ? plural(bytes, "byte")
    : bytes < 1e6
      ? (bytes / 1000).toFixed(bytes < 1e4 ? 1 : 0) + " kB"
      : bytes < 1e9
        ? (bytes / 1e6).toFixed(1) + " MB"
        : (bytes / 1e9).toFixed(2) + " GB";
