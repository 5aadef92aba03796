// Colors of code. A line is scanned once, from the state in which the line before it ended. So growing code is colored line by line, and
// hostile code takes linear time.
const MAX_COLORED_LINE = 2000;
function matcherOf(language) {
  language.matcher ??= new RegExp(language.rules.map(([, source]) => "(" + source + ")").join("|"), "gu");
  return language.matcher;
}
function kindOfWord(language, word, next) {
  if (language.keywords.has(language.ignoresCase ? word.toLowerCase() : word)) return "keyword";
  if (next === "(" || word.endsWith("!")) return "name";
  return /^\p{Lu}.*\p{Ll}/u.test(word) ? "type" : "";
}
// Returns the colored pieces of a line, each a kind and a text, and the state at its end: the end mark and the kind of an open comment or
// string.
function scanLine(language, line, state) {
  const pieces = [];
  if (line.length > MAX_COLORED_LINE) return { pieces: [["", line]], state };
  let at = 0;
  const put = (kind, upto) => {
    if (upto > at) pieces.push([kind, line.slice(at, upto)]);
    at = upto;
  };
  const close = (from) => {
    const end = line.indexOf(state[0], from);
    put(state[1], end < 0 ? line.length : end + state[0].length);
    if (end >= 0) state = null;
  };
  if (state) close(0);
  const matcher = matcherOf(language);
  for (matcher.lastIndex = at; !state && at < line.length;) {
    const hit = matcher.exec(line);
    if (!hit?.[0]) break;
    const rule = language.rules[hit.findIndex((it, place) => place && it !== undefined) - 1];
    put("", hit.index);
    if (rule[0] === "open") {
      state = ENDS[hit[0]];
      close(hit.index + hit[0].length);
    } else {
      const end = hit.index + hit[0].length;
      put(rule[0] === "word" ? kindOfWord(language, hit[0], line[end]) : rule[0], end);
    }
    matcher.lastIndex = at;
  }
  put(state ? state[1] : "", line.length);
  return { pieces, state };
}
const pieceNode = ([kind, text]) => (kind ? el("span", { className: kind, textContent: text }) : text);
// Fills a code element with lines, and colors them if the language is known. If it shows the beginning of the lines already, only the last
// line and new ones are drawn.
function drawCode(code, name, lines) {
  const language = languageByName.get(name?.toLowerCase());
  if (!language) {
    code.textContent = lines.join("\n");
    return;
  }
  const drawn = (code.drawn ??= []);
  const last = drawn.pop();
  while (code.childNodes.length > (last?.nodes ?? 0)) code.lastChild.remove();
  for (let place = drawn.length; place < lines.length; place += 1) {
    const nodes = code.childNodes.length,
      state = drawn.at(-1)?.state ?? null;
    const scanned = scanLine(language, lines[place], state);
    code.append(...(place ? ["\n"] : []), ...scanned.pieces.map(pieceNode));
    drawn.push({ nodes, state: scanned.state });
  }
}
