// Reads the text of one PDF file: the page sends its bytes, and gets the number of each page and then the text, or an error.
const MAX_PDF_TEXT = 4e6;
async function textOfPage(page) {
  const { items } = await page.getTextContent();
  return items.map((it) => (it.str ?? "") + (it.hasEOL ? "\n" : "")).join("");
}
async function textOfPdf(data, report) {
  const { promise } = pdfjsLib.getDocument({
    data,
    isEvalSupported: false,
    useWasm: false,
    stopAtErrors: false,
    verbosity: 0,
  });
  const pdf = await promise;
  const texts = [];
  let length = 0;
  for (let number = 1; number <= pdf.numPages; number += 1) {
    report({ page: number, pages: pdf.numPages });
    const page = await pdf.getPage(number);
    const text = await textOfPage(page);
    page.cleanup();
    length += text.length;
    if (length > MAX_PDF_TEXT) throw new Error("it has more than 4 million characters");
    texts.push(text.trim());
  }
  return texts.filter(Boolean).join("\n\n");
}
const answerPage = (answer) => parent.postMessage(answer, "*");
window.onmessage = async ({ source, data }) => {
  if (source !== parent) return;
  try {
    answerPage({ text: await textOfPdf(data, answerPage) });
  } catch (error) {
    answerPage({ error: String(error?.message ?? error).slice(0, 200) });
  }
};
answerPage({ isReady: true });
