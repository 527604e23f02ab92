"""Gives a fine-tuned classifier of Transformers a knob, and asks it at several budgets.

    python examples/convert_and_predict.py my-classifier/ texts.txt --out runs/converted

`texts.txt` has one text per line, a thousand or more; no labels are needed and nothing is trained.
Writes label and probability of the first texts at each budget, with tabs between them. Needs
`pip install 'apportion[hub,train]'`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from transformers import AutoModelForSequenceClassification, AutoTokenizer

import apportion


def main() -> None:
    """Converts, saves, and predicts from what was saved."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a classifier of Transformers: a folder, or a hub name")
    parser.add_argument("texts", type=Path, help="a file with one text per line")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--length", type=int, default=128, help="tokens per text")
    given = parser.parse_args()
    texts = given.texts.read_text(encoding="utf-8").splitlines()

    model = AutoModelForSequenceClassification.from_pretrained(given.model)
    words = apportion.Tokenizer.of(AutoTokenizer.from_pretrained(given.model), given.length)
    converted = apportion.convert(model, texts, tokenizer=words)

    classes = [model.config.id2label[number] for number in range(model.config.num_labels)]
    checkpoint = apportion.Checkpoint(converted.model, {"classes": classes}, words=words)
    apportion.save(checkpoint, given.out)

    runtime = apportion.Runtime(given.out)
    for budget in runtime.levels:  # those of the range that conversion can vouch for
        for text, (label, probability) in zip(
            texts[:3], runtime.predict(texts[:3], budget=budget), strict=True
        ):
            sys.stdout.write(f"{budget:g}\t{label}\t{probability:.4f}\t{text}\n")


if __name__ == "__main__":
    main()
