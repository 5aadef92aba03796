// Steps: the third-party files of the page are those of their packages, with their licences, and the page stays small.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { vendored, vendorFolder } from "./vendor.mjs";

export const thirdParty = {
  async "the vendored files are those of the packages"(trial) {
    for (const [path, text] of Object.entries(await vendored(trial.folder)))
      assert.ok(
        readFileSync(join(vendorFolder, path), "utf8") === text,
        path + " differs; run `cargo xtask page --vendor`",
      );
  },
  async "the licence of core-js is that of the version in pdf.js"() {
    const read = (path) => readFileSync(join(vendorFolder, path), "utf8");
    const { version } = JSON.parse(read("core-js/package.json"));
    const versions = read("pdfjs-dist/pdf.js").matchAll(/core-js\/blob\/v([\d.]+)\/LICENSE/g);
    assert.deepEqual(new Set([...versions].map((it) => it[1])), new Set([version]));
  },
  async "the page has at most 400 kB compressed"(trial) {
    const reply = await fetch(trial.proxy.origin, { headers: { accept: "text/html" } });
    const size = gzipSync(await reply.text(), { level: 9 }).length;
    assert.ok(size < 400_000, size + " bytes");
    console.log(`   it has ${(size / 1000).toFixed(0)} kB`);
  },
};
