// node assemble.js FOLDER [OUT]: a folder that any static server can serve, with the page, the two
// packages' files and an exported model side by side. Nothing is bundled or changed.

import { copyFileSync, existsSync, mkdirSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const PAGE = ["index.html", "style.css", "page.js", "curve.js", "worker.js", "model.js", "tokenizer.js"];
const VENDOR = [
  "onnxruntime-web/dist/ort.wasm.bundle.min.mjs",
  "onnxruntime-web/dist/ort-wasm-simd-threaded.wasm",
  "@huggingface/tokenizers/dist/tokenizers.min.mjs",
];
const MODEL = ["apportion.json", "model.onnx", "tokenizer.json", "tokenizer_config.json"];

const [folder, out = join(here, "site")] = process.argv.slice(2);
if (!folder) stop("say which exported folder: node assemble.js FOLDER [OUT]");
for (const name of MODEL) {
  if (!existsSync(join(folder, name))) stop(`${folder} has no ${name}; apportion export writes one`);
}
const packages = join(here, "node_modules");
for (const name of VENDOR) {
  if (!existsSync(join(packages, name))) stop(`${name} is not installed; run npm ci first`);
}
if (existsSync(out) && readdirSync(out).length && !existsSync(join(out, "model", MODEL[0]))) {
  stop(`${out} has other files in it; choose another folder`);
}
const copy = (from, name, to) => {
  mkdirSync(join(out, to), { recursive: true });
  copyFileSync(join(from, name), join(out, to, name.split("/").pop()));
};
for (const name of PAGE) copy(here, name, ".");
for (const name of VENDOR) copy(packages, name, "vendor");
for (const name of MODEL) copy(folder, name, "model");
console.log(`${out} is ready: python -m http.server --bind 127.0.0.1 --directory ${out}`);

function stop(sentence) {
  console.error(`error: ${sentence}`);
  process.exit(2);
}
