// The start of the page.
async function start() {
  // Without storage the page works, but forgets everything when it is closed.
  try {
    await opened;
  } catch {
    setHint("This browser does not allow storage; conversations are lost when this page is closed.");
  }
  $("input").value = readText("sessionStorage", "mlx-draft") || "";
  await show(readText("sessionStorage", "mlx-talk"));
  grow();
  refresh();
  setInterval(() => {
    if (!document.hidden && !reconnectTimer && $("locked").hidden) refresh();
  }, 10000);
  setInterval(watch, 2000);
  $("input").focus();
}
start();
