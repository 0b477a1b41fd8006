// Builds the page into ../strata_console/static; `--check` fails if the committed files differ.
import { build } from "esbuild";
import { readFileSync, writeFileSync } from "node:fs";

const target = new URL("../strata_console/static/", import.meta.url);
const result = await build({
  entryPoints: { app: "src/main.tsx" },
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "utf8",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  outdir: "out",
  write: false,
});
const files = new Map(result.outputFiles.map((file) => [file.path.split("/").pop(), file.text]));
for (const name of ["index.html", "icon.svg"]) {
  files.set(name, readFileSync(new URL(`src/${name}`, import.meta.url), "utf8"));
}
let stale = 0;
for (const [name, text] of files) {
  const path = new URL(name, target);
  if (process.argv.includes("--check")) {
    let there = "";
    try {
      there = readFileSync(path, "utf8");
    } catch {
      // It is missing, so it differs.
    }
    if (there !== text) {
      console.error(`${name} differs from what its source gives: make console-build`);
      stale = 1;
    }
  } else {
    writeFileSync(path, text);
  }
}
process.exit(stale);
