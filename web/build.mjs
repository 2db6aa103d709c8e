// Bundles src/main.ts into view/static/regard.js. Its first line holds the hash of what it was made from,
// which a Python test compares: tests need no Node.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "..", "src", "regard", "view", "static", "regard.js");

function sourceHash() {
  const hash = createHash("sha256");
  const sources = readdirSync(join(here, "src"))
    .sort()
    .map((name) => join("src", name));
  for (const name of [...sources, "build.mjs", "package-lock.json"]) {
    hash.update(`${name.replaceAll("\\", "/")}\0`);
    hash.update(readFileSync(join(here, name)));
    hash.update("\0");
  }
  return hash.digest("hex");
}

const done = await build({
  entryPoints: [join(here, "src", "main.ts")],
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  loader: { ".css": "text" },
  write: false,
});
const text = done.outputFiles[0].text;
// The module is put into a <script> element: nothing in it may look like that element's end.
if (/<\/script|<!--/i.test(text))
  throw new Error("the bundle holds </script or <!--, which would end its element");
writeFileSync(process.argv[2] ?? target, `// sources ${sourceHash()}\n${text}`);
console.log(`${process.argv[2] ?? target}: ${(text.length / 1024).toFixed(0)} KiB`);
