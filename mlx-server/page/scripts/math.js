// Math as MathML, by Temml. A formula that Temml rejects is shown as written.
const MAX_FORMULA = 2000,
  MAX_FORMULA_NODES = 3000,
  MAX_FORMULA_DEPTH = 60;
const MATH_OPTIONS = { throwOnError: true, trust: false, maxExpand: 200, maxSize: [20, 100] };
// Formulas are drawn again while their paragraph grows.
const formulas = new Map();
// A formula may not name elements, since the page finds its own by id, and has no links.
function isSafe(math) {
  const walker = document.createTreeWalker(math, NodeFilter.SHOW_ELEMENT);
  for (let count = 0, node = math; node; node = walker.nextNode(), count += 1) {
    node.removeAttribute("id");
    node.removeAttribute("href");
    let depth = 0;
    for (let it = node; it !== math; it = it.parentNode) depth += 1;
    if (count > MAX_FORMULA_NODES || depth > MAX_FORMULA_DEPTH) return false;
  }
  return true;
}
function rendered(source, isBlock) {
  const place = document.createElement("span");
  try {
    temml.render(source, place, { ...MATH_OPTIONS, displayMode: isBlock });
  } catch {
    return null;
  }
  const math = place.querySelector("math");
  return math && isSafe(place) ? math : null;
}
function mathNode(source, isBlock, written) {
  const key = (isBlock ? "block " : "inline ") + source;
  if (!formulas.has(key)) {
    if (formulas.size > 500) formulas.clear();
    formulas.set(key, source.length > MAX_FORMULA ? null : rendered(source, isBlock));
  }
  const math = formulas.get(key)?.cloneNode(true);
  if (!math) return el("code", { className: "written", textContent: written });
  return isBlock ? el("span", { className: "math", tabIndex: 0 }, math) : math;
}
const FORMULA_MARKS = { $$: "$$", "\\[": "\\]", "\\(": "\\)", $: "$" };
// Returns the position of the mark that closes a formula, or -1. As in Pandoc, a dollar opens a formula before a character other than white
// space, and closes it after one and before no digit, so that "$5 and $10" are prices. `next` has the position of the next closing mark of each
// kind, so that a text without one is searched once.
function formulaEnd(text, mark, at, next) {
  const from = at + mark.length;
  if (mark === "$" && (isWord(text[at - 1]) || /\s/.test(text[from] ?? " "))) return -1;
  if (!(next[mark] === -1 || next[mark] >= from)) next[mark] = text.indexOf(FORMULA_MARKS[mark], from);
  const end = next[mark];
  if (end < from || end - from > MAX_FORMULA) return -1;
  const inside = text.slice(from, end);
  if (mark === "$" && (/[\s\\]$/.test(inside) || /\d/.test(text[end + 1] ?? ""))) return -1;
  return inside.trim() ? end : -1;
}
