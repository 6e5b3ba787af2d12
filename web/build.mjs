// Bundles each page into one file without a link to anything: NAME.html in the package that serves or writes it.
//
// The file names the digest of its sources; a test compares it, so that nobody needs node to know that what is
// committed is what the sources say. Scripts and styles are allowed by their hashes and by nothing else.
import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const compiler = join(here, "..", "recycle_compiler", "viz", "pages");
const runtime = join(here, "..", "runtime", "recycle_runtime", "live_page");
/** Where each page goes, and whom it may ask for data. */
const PAGES = {
  plan: [compiler, "'none'"],
  fleet: [compiler, "'none'"],
  play: [compiler, "'self'"],
  live: [runtime, "'self'"],
};

/** As tests/test_web.py computes it: names and contents of all that the result depends on. */
function digest() {
  const sources = readdirSync(join(here, "src"), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => relative(here, join(entry.parentPath, entry.name)).replaceAll("\\", "/"));
  const hash = createHash("sha256");
  for (const name of [...sources, "build.mjs", "package.json", "package-lock.json"].sort()) {
    hash.update(`${name}\n`).update(readFileSync(join(here, name))).update("\n");
  }
  return hash.digest("hex");
}

function hashed(text) {
  return `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
}

async function bundled(name) {
  const { outputFiles } = await build({
    entryPoints: [join(here, "src", name, "main.ts")],
    bundle: true,
    minify: true,
    write: false,
    outdir: "out",
    format: "iife",
    target: ["chrome100", "firefox100", "safari15.4"],
    charset: "ascii",
    legalComments: "none",
  });
  const find = (end) => outputFiles.find((file) => file.path.endsWith(end)).text.trim();
  return { script: find(".js").replaceAll("</script", "<\\/script"), style: find(".css") };
}

for (const [name, [target, connect]] of Object.entries(PAGES)) {
  mkdirSync(target, { recursive: true });
  const { script, style } = await bundled(name);
  const body = readFileSync(join(here, "src", name, "body.html"), "utf8").trim();
  const policy = `default-src 'none'; script-src ${hashed(script)}; style-src ${hashed(style)}; connect-src ${connect}; img-src data:; base-uri 'none'; form-action 'none'`;
  const page = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="sources" content="${digest()}">
<link rel="icon" href="data:,">
<title>@@TITLE@@</title>
<style>${style}</style>
</head>
<body>
${body}
<noscript><p>This page draws with a script of its own, and loads nothing. Scripts are switched off.</p></noscript>
<script type="application/json" id="data">@@DATA@@</script>
<script>${script}</script>
</body>
</html>
`;
  writeFileSync(join(target, `${name}.html`), page);
  console.log(`${name}.html: ${Math.round(page.length / 1024)} KiB`);
}
