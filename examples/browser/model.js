// An exported folder in a page: texts in; label, probabilities and milliseconds out.
//
//   const model = await openModel("model/");
//   const { label, probability, ms } = await model.predict("a text", 0.25);

import * as ort from "./vendor/ort.wasm.bundle.min.mjs";
import { Tokenizer } from "./tokenizer.js";

// One thread needs no cross-origin isolation, so any static server will do.
ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmPaths = {
  wasm: new URL("vendor/ort-wasm-simd-threaded.wasm", import.meta.url).href,
};
ort.env.logLevel = "error";

const SLACK = 1e-6; // as in the graph: a budget of 0.1 + 0.2 pays for 0.3

/** Reads a folder that `apportion export` wrote; `progress(bytes, all)` follows the graph. */
export async function openModel(folder, progress = () => {}) {
  const base = new URL(folder, import.meta.url);
  const manifest = await fetchFile(base, "apportion.json");
  const facts = parse(manifest, "apportion.json");
  if (facts.format !== "apportion-export" || facts.version !== 1) {
    throw new Error("apportion.json is not of an exported model; apportion export writes one.");
  }
  const read = async (name, follow) => {
    const bytes = await fetchFile(base, name, facts.files[name].bytes, follow);
    await check(bytes, facts.files[name], name);
    return bytes;
  };
  const [file, settings] = await Promise.all([read("tokenizer.json"), read("tokenizer_config.json")]);
  const tokenizer = new Tokenizer(
    parse(file, "tokenizer.json"),
    parse(settings, "tokenizer_config.json"),
  );
  const graph = await read("model.onnx", progress);
  const session = await ort.InferenceSession.create(graph, { executionProviders: ["wasm"] });
  return new Model(facts, tokenizer, session);
}

class Model {
  constructor(facts, tokenizer, session) {
    this.facts = facts;
    this.levels = facts.levels;
    this.costs = facts.costs;
    this.classes = facts.classes;
    this.tokenizer = tokenizer;
    this.session = session;
  }

  /** The highest level that a budget pays for; below the lowest is an error. */
  levelOf(budget) {
    if (!(budget > 0 && budget <= 1)) throw new Error(`A budget is a number in (0, 1], not ${budget}.`);
    const paid = this.levels.filter((level) => level <= budget + SLACK);
    if (!paid.length) {
      throw new Error(`Budget ${budget} is below the lowest level of this file, ${this.levels[0]}.`);
    }
    return paid[paid.length - 1];
  }

  /** The logits of one text, given as ids, at a budget. */
  async logits(ids, budget) {
    this.levelOf(budget);
    const shape = [1, ids.length];
    const filled = (value) =>
      new ort.Tensor("int64", new BigInt64Array(ids.length).fill(value), shape);
    const inputs = {
      input_ids: new ort.Tensor("int64", BigInt64Array.from(ids, BigInt), shape),
      attention_mask: filled(1n),
      budget: new ort.Tensor("float32", Float32Array.of(budget), []),
    };
    if (this.session.inputNames.includes("token_type_ids")) inputs.token_type_ids = filled(0n);
    const { logits } = await this.session.run(inputs);
    return logits.data;
  }

  /** What the model says of a text; the milliseconds are those of the graph alone. */
  async predict(text, budget) {
    const { ids, full } = this.tokenizer.encode(text);
    const started = performance.now();
    const logits = await this.logits(ids, budget);
    const ms = performance.now() - started;
    const probabilities = softmax(logits);
    const probability = Math.max(...probabilities);
    const label = this.classes[probabilities.indexOf(probability)];
    const level = this.levelOf(budget);
    return { label, probability, probabilities, level, ms, tokens: ids.length, full };
  }
}

function softmax(logits) {
  const largest = Math.max(...logits);
  const powers = Array.from(logits, (logit) => Math.exp(logit - largest));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => power / sum);
}

async function fetchFile(base, name, size, progress = () => {}) {
  const answer = await fetch(new URL(name, base));
  if (!answer.ok) throw new Error(`There is no ${name} in ${base.pathname}: assemble the page again.`);
  const chunks = [];
  let read = 0;
  for (const reader = answer.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) break;
    chunks.push(value);
    progress((read += value.length), size);
  }
  return new Uint8Array(await new Blob(chunks).arrayBuffer());
}

/** Complains of a file that is not the one that was exported. */
async function check(bytes, { bytes: size, sha256 }, name) {
  let same = bytes.length === size;
  // Browsers hash on https and on localhost alone; elsewhere the size has to do.
  if (same && globalThis.crypto?.subtle) {
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
    same = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("") === sha256;
  }
  if (!same) throw new Error(`${name} is truncated or was changed: it is not what was exported.`);
}

function parse(bytes, name) {
  try {
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    throw new Error(`${name} is not JSON: it is truncated or was changed.`);
  }
}
