// The third-party files of the page: node vendor.mjs FOLDER writes them into mlx-server/page/vendor, from the packages in FOLDER/node_modules.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
export const vendorFolder = join(here, "../../mlx-server/page/vendor");

// The reader of PDF files, in one file: pdf.js starts its worker by a second file, unless the worker is loaded already.
const PDF_ENTRY = `
import { getDocument } from "pdfjs-dist/legacy/build/pdf.mjs";
import { WorkerMessageHandler } from "pdfjs-dist/legacy/build/pdf.worker.mjs";
globalThis.pdfjsWorker = { WorkerMessageHandler };
export { getDocument };
`;

/** The vendored files by path, each with the text that the packages give. */
export async function vendored(folder) {
  const modules = join(resolve(folder), "node_modules");
  const read = (path) => readFileSync(join(modules, path), "utf8");
  const about = (name) => {
    const { version, license } = JSON.parse(read(name + "/package.json"));
    return JSON.stringify({ name, version, license }, null, 2) + "\n";
  };
  const { build } = createRequire(modules + "/")("esbuild");
  const bundle = await build({
    stdin: { contents: PDF_ENTRY, resolveDir: modules },
    bundle: true,
    minify: true,
    format: "iife",
    globalName: "pdfjsLib",
    target: "es2022",
    legalComments: "none",
    write: false,
    logLevel: "error",
  });
  return {
    "temml/temml.min.js": read("temml/dist/temml.min.js"),
    "temml/LICENSE": read("temml/LICENSE"),
    "temml/package.json": about("temml"),
    "pdfjs-dist/pdf.js": bundle.outputFiles[0].text,
    "pdfjs-dist/LICENSE": read("pdfjs-dist/LICENSE"),
    "pdfjs-dist/package.json": about("pdfjs-dist"),
    // The legacy build of pdf.js contains parts of core-js, but the package does not have its licence.
    "core-js/LICENSE": read("core-js/LICENSE"),
    "core-js/package.json": about("core-js"),
  };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  for (const [path, text] of Object.entries(await vendored(process.argv[2]))) {
    const file = join(vendorFolder, path);
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, text);
  }
}
