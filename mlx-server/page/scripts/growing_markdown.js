// Draws Markdown that grows.
const isSame = (one, other) =>
  one?.kind === other.kind &&
  one.name === other.name &&
  one.isClosed === other.isClosed &&
  one.lines.length === other.lines.length &&
  one.lines.every((line, place) => line === other.lines[place]);
// True if the new block of code begins with all complete lines of the old one.
const continuesCode = (old, block) =>
  old?.kind === "code" &&
  block?.kind === "code" &&
  old.name === block.name &&
  block.lines.length >= old.lines.length - 1 &&
  old.lines.slice(0, -1).every((line, place) => line === block.lines[place]);
// Text that grew is parsed again from the last but one block on, since an incomplete line may turn out to belong to that block.
function drawMarkdown(place, raw) {
  const old = place.drawn;
  if (old?.raw === raw) return;
  const grew = old && raw.startsWith(old.raw);
  const text = grew ? old.text + visible(raw.slice(old.raw.length)) : visible(raw);
  const blocks = grew ? old.blocks.slice(0, -2) : [];
  const from = grew ? (old.blocks.at(-2)?.at ?? 0) : 0;
  for (const it of blocksOf(text.slice(from))) blocks.push({ ...it, at: it.at + from });
  let same = Math.max(0, grew ? old.blocks.length - 2 : 0);
  while (grew && same < blocks.length && isSame(old.blocks[same], blocks[same])) same += 1;
  if (grew && continuesCode(old.blocks[same], blocks[same])) {
    drawCode(place.childNodes[same].querySelector("code"), blocks[same].name, blocks[same].lines);
    same += 1;
  }
  while (place.childNodes.length > same) place.lastChild.remove();
  for (const it of blocks.slice(same)) place.append(blockNode(it));
  place.drawn = { raw, text, blocks };
}
