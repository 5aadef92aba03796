// Elements for the blocks of a text.
function codeNode({ lines, name }) {
  const code = el("code");
  drawCode(code, name, lines);
  const copyIt = copyButton("Copy the code", () => code.textContent);
  const head = el("header", {}, el("span", { textContent: name }), copyIt);
  return el("div", { className: "code" }, head, el("pre", { tabIndex: 0 }, code));
}
// A formula of several lines, and the text after its end.
function formulaNode({ lines, end, isClosed }) {
  const written = lines.join("\n").trim();
  const close = written.lastIndexOf(end);
  if (!isClosed) return el("p", {}, inline(written));
  const node = mathNode(written.slice(2, close), true, written.slice(0, close + 2));
  return el("p", {}, node, written.slice(close + 2));
}
function listNode({ kind, lines, indent }) {
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && (item[1].length < indent + 2 || !items.length))
      items.push({ width: item[0].length, lines: [line.slice(item[0].length)] });
    else items.at(-1).lines.push(line.slice(Math.min(items.at(-1).width, indentOf(line))));
  }
  const list = el(
    kind,
    {},
    items.map((it) => {
      const text = it.lines.join("\n").replace(/^\[([ xX])\] /, (_, mark) => (mark === " " ? "☐ " : "☑ "));
      return el("li", {}, markdownNodes(text, true));
    }),
  );
  if (kind === "ol") list.start = parseInt(lines[0], 10);
  return list;
}
function tableNode({ lines }) {
  const cells = (line) =>
    line
      .trim()
      .replace(/^\||\|$/g, "")
      .split(/(?<!\\)\|/)
      .map((cell) => cell.trim().replaceAll("\\|", "|"));
  const sideOf = (it) => (!it.endsWith(":") ? "" : it.startsWith(":") ? "middle" : "right");
  const sides = cells(lines[1]).map(sideOf);
  const count = sides.length;
  const row = (line, tag) =>
    el(
      "tr",
      {},
      cells(line)
        .concat(Array(count).fill(""))
        .slice(0, count)
        .map((cell, place) => el(tag, { className: sides[place] }, inline(cell))),
    );
  const table = el(
    "table",
    {},
    el("thead", {}, row(lines[0], "th")),
    el(
      "tbody",
      {},
      lines.slice(2).map((line) => row(line, "td")),
    ),
  );
  return el("div", { className: "table", tabIndex: 0 }, table);
}
function blockNode(block) {
  const { kind, lines } = block;
  if (kind === "code") return codeNode(block);
  if (kind === "math") return formulaNode(block);
  if (kind === "rule") return el("hr");
  // All headings are h2 elements of different sizes, since models skip levels, which confuses screen readers.
  if (kind === "head") {
    const [marks] = /#+/.exec(lines[0]);
    return el(
      "h2",
      { className: "size" + marks.length },
      inline(lines[0].trim().slice(marks.length).replace(/\s#+$/, "").trim()),
    );
  }
  if (kind === "quote")
    return el("blockquote", {}, markdownNodes(lines.map((line) => line.replace(/^\s*> ?/, "")).join("\n")));
  if (kind === "ul" || kind === "ol") return listNode(block);
  return kind === "table" ? tableNode(block) : el("p", {}, inline(lines.join("\n")));
}
// Each level of nested quotes costs a call. Hostile text may have thousands of levels, so deep ones are shown as text.
let depth = 0;
function markdownNodes(text, isItem = false) {
  if (depth > 8) return [text];
  depth += 1;
  try {
    return blocksOf(text).map((block, place) =>
      isItem && !place && block.kind === "text" ? inline(block.lines.join("\n")) : blockNode(block),
    );
  } finally {
    depth -= 1;
  }
}
