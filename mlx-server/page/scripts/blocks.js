// Blocks of a text: each has a kind, lines and a position, so that growing text is parsed again only from the last blocks on.
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)/;
const SEPARATOR = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const indentOf = (line) => line.length - line.trimStart().length;
function kindOf(line) {
  if (/^\s*(`{3,}[^`]*|~{3,}.*)$/.test(line)) return "code";
  if (/^\s{0,3}#{1,6}(\s|$)/.test(line)) return "head";
  if (/^\s*>/.test(line)) return "quote";
  // A formula of several lines. One that ends on its line is part of a paragraph.
  const [, mark] = /^\s*(\$\$|\\\[)/.exec(line) ?? [];
  if (mark && !line.includes(FORMULA_MARKS[mark], line.indexOf(mark) + 2)) return "math";
  if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) return "rule";
  const item = ITEM.exec(line);
  return !item ? "text" : "-*+".includes(item[2]) ? "ul" : "ol";
}
function continuesBlock(open, kind, line, blank) {
  if (open?.indent !== undefined)
    return indentOf(line) >= open.indent + 2 || kind === open.kind || (kind === "text" && !blank);
  if (open?.kind === "table") return line.includes("|");
  // Within a paragraph, only the number 1 starts a list: "in\n1984. It was" does not.
  if (open?.kind === "text") return kind === "text" || (kind === "ol" && !/^\s*1[.)]/.test(line));
  return open?.kind === "quote" && (kind === "quote" || kind === "text");
}
function blocksOf(text) {
  const blocks = [];
  let open = null;
  let at = 0;
  let blank = 0;
  const begin = (kind, lines, more) => {
    open = { kind, lines, at, ...more };
    blocks.push(open);
  };
  const read = (line) => {
    if (open?.fence) {
      if (line.trim().startsWith(open.fence) && !line.trim().replaceAll(open.fence[0], "")) open = null;
      else open.lines.push(line.slice(Math.min(open.within, indentOf(line))));
      return;
    }
    // Until its end is written, a formula is a paragraph. As in TeX, it has no empty lines.
    if (open?.kind === "math" && line.trim()) {
      open.lines.push(line);
      if (line.includes(open.end)) {
        open.isClosed = true;
        open = null;
      }
      return;
    }
    if (!line.trim()) {
      if (open?.indent === undefined) open = null;
      else blank += 1;
      return;
    }
    const kind = kindOf(line);
    const last = open?.kind === "text" ? open.lines.at(-1) : "";
    if (last.includes("|") && line.includes("|") && SEPARATOR.test(line)) {
      open.lines.pop();
      if (!open.lines.length) blocks.pop();
      begin("table", [last, line], { at: at - last.length - 1 });
    } else if (continuesBlock(open, kind, line, blank)) {
      for (; blank; blank -= 1) open.lines.push("");
      open.lines.push(line);
    } else if (kind === "code") {
      const [, fence, name] = /^\s*(`{3,}|~{3,})\s*([^\s`]*)/.exec(line);
      begin(kind, [], { fence, name, within: indentOf(line) });
    } else if (kind === "math") begin(kind, [line], { end: line.trim().startsWith("$$") ? "$$" : "\\]" });
    else begin(kind, [line], kind === "ul" || kind === "ol" ? { indent: indentOf(line) } : {});
    blank = 0;
  };
  for (const line of text.split("\n")) {
    read(line);
    at += line.length + 1;
  }
  return blocks;
}
