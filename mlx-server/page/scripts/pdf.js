// The text of PDF files. A hidden frame reads them, without access to this page, so that a hostile file reaches nothing.
const PDF_TIME_LIMIT = 120000;
const READER_DELAY = 10000;
// Opens the frame that reads one file.
function openReader() {
  const frame = el("iframe", { hidden: true, title: "PDF reader", src: "pdf-reader" });
  frame.setAttribute("sandbox", "allow-scripts");
  document.body.append(frame);
  return frame;
}
// Returns the text of a PDF file. `report` is called with the progress of long ones.
async function pdfText(file, report) {
  const data = await file.arrayBuffer();
  const frame = openReader();
  try {
    return await new Promise((done, fail) => {
      const refuse = (why) => fail(new Error(file.name + " " + why));
      const timer = setTimeout(() => refuse("was not read within two minutes"), PDF_TIME_LIMIT);
      // The reader answers before its frame is loaded. An error page of the browser does not.
      let isReady = false;
      const checkReader = () => isReady || refuse("was not read: the server does not respond");
      frame.onload = () => setTimeout(checkReader, READER_DELAY);
      frame.answer = (answer) => {
        if (answer.isReady && !isReady) frame.contentWindow.postMessage(data, "*", [data]);
        isReady ||= answer.isReady;
        if (answer.pages > 20)
          report("Reading page " + answer.page + " of " + answer.pages + " of " + file.name + " …");
        if (answer.text === undefined && !answer.error) return;
        clearTimeout(timer);
        if (answer.error) refuse("cannot be read as PDF: " + answer.error);
        else if (!String(answer.text).trim()) refuse("has no text; it may contain pictures of pages");
        else done(String(answer.text));
      };
    });
  } finally {
    frame.remove();
  }
}
window.addEventListener("message", ({ source, data }) => {
  const frame = [...document.querySelectorAll("iframe")].find((it) => it.contentWindow === source);
  if (frame && data) frame.answer({ ...data });
});
