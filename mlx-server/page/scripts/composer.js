// The message field: sending, unsent text and files, dropped files.
const DRAFT_FILES = "mlx-draft-files";
// On a phone, Enter makes a line, and the button sends.
const isPhone = matchMedia("(hover: none) and (pointer: coarse)");
const grow = () => {
  $("input").style.height = "auto";
  $("input").style.height = $("input").scrollHeight + 2 + "px";
  writeText("sessionStorage", "mlx-draft", $("input").value);
};
$("ask").onsubmit = (event) => {
  event.preventDefault();
  const text = $("input").value;
  if (isAnswering(shown.id) || !$("input").checkRead() || !$("input").isFilled() || !checkNumbers()) return;
  $("input").value = "";
  grow();
  send(text, $("input").take());
};
$("input").oninput = grow;
$("input").onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !isPhone.matches) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
  const last = path(shown, shown.leaf).findLast((it) => it.role === "user");
  if (event.key === "ArrowUp" && !$("input").value && last && !isAnswering(shown.id)) {
    event.preventDefault();
    editor(last);
  }
};
// Unsent files survive a reload, like the text, if they fit into the session storage: 5 to 10 MB.
function readDraftFiles() {
  try {
    const { pictures = [], files = [] } = JSON.parse(readText("sessionStorage", DRAFT_FILES)) ?? {};
    return { pictures: pictures.filter((it) => IMAGE_URL.test(it.url)), files };
  } catch {
    return {};
  }
}
withAttachments($("input"), readDraftFiles());
$("ask").prepend($("input").strip);
$("input").keep = () => {
  const attached = $("input").attached();
  const isEmpty = attached.pictures.length + attached.files.length === 0;
  // If the new files do not fit, the old ones must not come back either.
  writeText("sessionStorage", DRAFT_FILES, "");
  if (!isEmpty && !writeText("sessionStorage", DRAFT_FILES, JSON.stringify(attached)))
    flashHint("These files are too large to keep when the page is reloaded.");
};
$("attach").onclick = () => $("files").click();
$("files").onchange = async () => {
  await $("input").attach([...$("files").files]);
  $("files").value = "";
  $("input").focus();
};
// Files can be dropped anywhere on the conversation. They go into a message that is being edited there, else into the next one.
$("main").ondragover = (event) => {
  if (!event.dataTransfer.types.includes("Files")) return;
  event.preventDefault();
  $("main").classList.add("drop");
};
$("main").ondragleave = (event) => {
  if (!$("main").contains(event.relatedTarget)) $("main").classList.remove("drop");
};
$("main").ondrop = (event) => {
  $("main").classList.remove("drop");
  if (!event.dataTransfer.files.length) return;
  event.preventDefault();
  (event.target.attach ? event.target : $("input")).attach([...event.dataTransfer.files]);
};
$("stop").onclick = () => stopAnswer(shown.id);
