// Inline Markdown. Texts become nodes, never markup. Every search is bounded, so that hostile text takes linear time.
const MARK = /\\[!-/:-@[-`{-~]|\${1,2}|`+|\*{1,2}|_{1,2}|~~|!?\[|<br\s*\/?>|https?:\/\/[^\s<>"`|]{1,2000}/gi;
const TARGET =
  /\]\(\s{0,9}<?([^\s()<>]{0,2000}(?:\([^\s()<>]{0,200}\)[^\s()<>]{0,200}){0,9})>?(?:\s{1,9}"[^"]{0,200}")?\s{0,9}\)/y;
const anchor = (href, ...children) =>
  el("a", { href, title: href, rel: "noopener noreferrer", target: "_blank" }, ...children);
const isWord = (letter) => letter !== undefined && /[\p{L}\p{N}]/u.test(letter);
function inline(text, depth = 0) {
  const out = document.createDocumentFragment();
  const absent = new Set();
  const nextEnds = {};
  // Returns the position of the closing mark. It never follows white space, and is not part of a longer mark or, for underscores, within a word.
  const closing = (mark, from) => {
    if (absent.has(mark)) return -1;
    let at = from;
    for (let tries = 0; tries < 16; tries += 1, at += 1) {
      at = text.indexOf(mark, at);
      if (at < 0) {
        absent.add(mark);
        return -1;
      }
      // Of three marks, the last two close a pair: "**a *b***".
      if (mark.length === 2 && text[at + 2] === mark[0]) at += 1;
      const next = text[at + mark.length];
      if (
        mark[0] === "`"
          ? next !== "`" && text[at - 1] !== "`"
          : at > from &&
            !/\s/.test(text[at - 1]) &&
            next !== (mark.length === 1 ? mark : "") &&
            !(mark[0] === "_" && isWord(next))
      )
        return at;
      if (next === mark[0]) at += mark.length;
    }
    return -1;
  };
  let done = 0;
  const put = (upto, node, next) => {
    out.append(text.slice(done, upto), node);
    done = next;
    MARK.lastIndex = next;
  };
  MARK.lastIndex = 0;
  for (let hit; depth < 6 && (hit = MARK.exec(text));) {
    const at = hit.index;
    const mark = hit[0];
    const after = at + mark.length;
    const formula = FORMULA_MARKS[mark] ? formulaEnd(text, mark, at, nextEnds) : -1;
    if (formula >= 0) {
      const end = formula + mark.length;
      put(
        at,
        mathNode(text.slice(after, formula), mark === "$$" || mark === "\\[", text.slice(at, end)),
        end,
      );
    } else if (mark[0] === "$") continue;
    else if (mark[0] === "\\") put(at, mark[1], after);
    else if (mark[0] === "<") put(at, el("br"), after);
    else if (mark[0] === "h" || mark[0] === "H") {
      const href = mark.replace(/[.,;:!?'*_~)\]]{1,9}$/, (end) =>
        end.startsWith(")") && mark.includes("(") ? ")" : "",
      );
      put(at, anchor(href, href), at + href.length);
    } else if (mark.endsWith("[")) {
      const close = text.slice(after, after + 1000).indexOf("](");
      TARGET.lastIndex = after + close;
      const target = close >= 0 && TARGET.exec(text);
      // Only http and https: other links could run scripts or show documents of the model, so they stay text.
      if (target && /^https?:\/\//i.test(target[1]))
        put(
          at,
          anchor(target[1], nested(text.slice(after, after + close) || target[1], depth)),
          TARGET.lastIndex,
        );
    } else {
      const isCode = mark[0] === "`";
      const opens = isCode || (!/\s/.test(text[after] ?? " ") && !(mark[0] === "_" && isWord(text[at - 1])));
      const close = opens ? closing(mark, after) : -1;
      if (close < 0) continue;
      const inside = text.slice(after, close);
      put(
        at,
        isCode
          ? el("code", { textContent: inside.replace(/^ (.*[^ ].*) $/, "$1") })
          : el(mark === "~~" ? "del" : mark.length === 2 ? "strong" : "em", {}, nested(inside, depth)),
        close + mark.length,
      );
    }
  }
  out.append(text.slice(done));
  return out;
}
function nested(text, depth) {
  const lastIndex = MARK.lastIndex;
  const out = inline(text, depth + 1);
  MARK.lastIndex = lastIndex;
  return out;
}
