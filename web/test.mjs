// Runs tests/*.test.ts with Node's own runner: esbuild turns them into JavaScript first.
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const names = readdirSync(join(here, "tests")).filter((name) => name.endsWith(".test.ts"));
const folder = mkdtempSync(join(tmpdir(), "regard-web-"));
try {
  await build({
    entryPoints: names.map((name) => join(here, "tests", name)),
    outdir: folder,
    bundle: true,
    platform: "node",
    format: "esm",
    outExtension: { ".js": ".mjs" },
    loader: { ".css": "text" },
    sourcemap: "inline",
    logLevel: "warning",
  });
  const files = names.map((name) => join(folder, name.replace(/\.ts$/, ".mjs")));
  const ran = spawnSync(process.execPath, ["--enable-source-maps", "--test", ...files], { stdio: "inherit" });
  process.exitCode = ran.status ?? 1;
} finally {
  rmSync(folder, { recursive: true });
}
