// Texts into ids, the same ones that Python gets from the same tokenizer.json.
//
// The package reads tokenizer.json, but does not truncate, and differs from the Python library in
// three places: two of BERT's normalisation, and what is a space to byte-level BPE. All are mended
// here.

import { Tokenizer as Backend } from "./vendor/tokenizers.min.mjs";

// Chinese characters outside the first plane: the package splits them into halves.
const FAR_CHINESE =
  /[\u{20000}-\u{2A6DF}\u{2A700}-\u{2B81F}\u{2B920}-\u{2CEAF}\u{2F800}-\u{2FA1F}]/gu;

export class Tokenizer {
  constructor(file, settings) {
    checkKind(file);
    if (!file.truncation) throw new Error("The tokenizer does not say where it truncates.");
    this.backend = new Backend(file, settings);
    if (file.model.type === "BPE") mendSpaces(this.backend.pre_tokenizer);
    this.normalizer = file.normalizer;
    this.truncation = file.truncation;
    this.tail = settings.kept_tail ?? 0; // tokens of a long text's end that are read, too
    const unknown = file.model.unk_token ?? settings.unk_token?.content ?? settings.unk_token;
    this.unknown = this.backend.token_to_id(unknown);
    // A text of no words shows what is put around every text.
    this.around = this.backend.encode("").ids.length;
  }

  /** The ids of a text: one at least, `max_length` at most; and how many it would have had. */
  encode(text) {
    const words = this.backend.encode(this.prepare(text), { add_special_tokens: false }).tokens;
    const kept = this.tail ? words : this.truncate(words);
    const tokens = this.backend.post_processor?.post_process(kept, null, true).tokens ?? kept;
    const ids = this.ends(tokens.map((token) => this.backend.token_to_id(token) ?? this.unknown));
    return { ids: ids.length ? ids : [this.unknown], full: words.length + this.around };
  }

  truncate(words) {
    const room = this.truncation.max_length - this.around;
    const left = this.truncation.direction === "Left";
    return left ? words.slice(Math.max(0, words.length - room)) : words.slice(0, room);
  }

  /** The first and last ids of a text, where a tail is kept and there are too many. */
  ends(ids) {
    const length = this.truncation.max_length;
    if (!this.tail || ids.length <= length) return ids;
    return [...ids.slice(0, length - this.tail), ...ids.slice(-this.tail)];
  }

  prepare(text) {
    if (this.normalizer?.type !== "BertNormalizer") return text;
    if (this.normalizer.handle_chinese_chars) text = text.replace(FAR_CHINESE, " $& ");
    // JavaScript has another small sigma at the end of a word; the Python library has not.
    return this.normalizer.lowercase ? text.replaceAll("Σ", "σ") : text;
  }
}

/** JavaScript's spaces have U+FEFF among them, and not U+0085; those of Unicode are the reverse. */
function mendSpaces(splitter) {
  const pattern = splitter.pattern.source
    .replaceAll("\\s", "\\p{White_Space}")
    .replaceAll("\\S", "\\P{White_Space}");
  splitter.pattern = new RegExp(pattern, "gu");
}

/** Complains of a tokenizer whose ids have not been compared with Python's. */
function checkKind({ model, normalizer, pre_tokenizer: splitter }) {
  const wordPiece =
    model.type === "WordPiece" &&
    normalizer?.type === "BertNormalizer" &&
    splitter?.type === "BertPreTokenizer";
  const byteLevel = model.type === "BPE" && splitter?.type === "ByteLevel" && !normalizer;
  if (wordPiece || byteLevel) return;
  const parts = [model.type, normalizer?.type, splitter?.type].filter(Boolean).join(" with ");
  throw new Error(`This page reads BERT's WordPiece and byte-level BPE; this tokenizer is ${parts}.`);
}
