"""Windows on long documents: `python tools/windows.py CHECKPOINT DATA`.

CHECKPOINT reads 256 tokens: `dense-256` of experiments/imdb-512.toml, for example, or an export of
one. DATA is a folder of CSV files with a column `text`; labels are not used. Documents of 700
tokens and more are drawn five times: some certify "read on until sure", at most 2 % of the answers
other than those of all windows, and the others say how often answers really differ, and how many
windows are read. Each draw is one record in experiments/certificates/windows.jsonl; a run that was
stopped goes on where it was. Counts alone are measured, so a busy machine does no harm.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from apportion.data.rows import Row, open_text, plain, read_csv
from apportion.serving.batch.windows import (
    Documents,
    certify_reading,
    read_documents,
    usual_overlap,
)
from apportion.serving.runtime.session import Runtime
from apportion.study import records
from apportion.study.certificate_records import WindowsRecord

OUT = Path(__file__).parents[1] / "experiments" / "certificates" / "windows.jsonl"
LEAST, LONGEST = 700, 4096  # tokens of a document
EPSILON, CONFIDENCE, DRAWS = 0.02, 0.95, 5
SHARE = 0.8  # of the documents, to certify with
NONE = "No record yet: `python tools/windows.py CHECKPOINT DATA` writes them."


def long_documents(folder: Path, runtime: Runtime, *, least: int = LEAST) -> list[str]:
    """The different texts of a folder's files that have so many tokens."""
    texts: list[str] = []
    for file in sorted(folder.glob("*.csv")):
        with open_text(file) as stream:
            rows = read_csv(stream, file.name, ["text"], None)
            texts += [row.text for row in rows if isinstance(row, Row)]
    distinct = list({plain(text): text for text in texts}.values())
    words = runtime.tokenizer
    # Without overlap, the windows of a text hold each of its tokens once, beside their marks.
    windows = words.windows(distinct, longest=LONGEST, overlap=0)
    count = [sum(token not in words.marks for one in found for token in one) for found in windows]
    return [text for text, tokens in zip(distinct, count, strict=True) if tokens >= least]


def measure(
    runtime: Runtime, texts: Sequence[str], *, data: str, draw: int, least: int = LEAST
) -> WindowsRecord:
    """A certificate on some documents, and the truth on the others."""
    order = np.random.default_rng(draw).permutation(len(texts)).tolist()
    split = int(SHARE * len(texts))
    certified = certify_reading(
        runtime,
        [texts[n] for n in order[:split]],
        longest=LONGEST,
        disagree_at_most=EPSILON,
        confidence=CONFIDENCE,
        seed=draw,
    )
    words = runtime.tokenizer
    others = [texts[n] for n in order[split:]]
    documents: Documents = words.windows(others, longest=LONGEST, overlap=usual_overlap(words))
    model = partial(runtime, budget=certified.budget)
    whole, windows = read_documents(model, words, documents)
    sure, read = read_documents(model, words, documents, threshold=certified.threshold)
    return WindowsRecord(
        stage=runtime.identity["weights"][:16],
        method="until-sure",
        data_seed=draw,
        seed=draw,
        only=None,
        data=data,
        runtime=runtime.identity["runtime"],
        precision=runtime.identity["precision"],
        budget=certified.budget,
        least=least,
        window=certified.window,
        overlap=certified.overlap,
        longest=certified.longest,
        disagree_at_most=certified.disagree_at_most,
        confidence=certified.confidence,
        tuned_rows=certified.tuned_rows,
        rows=certified.rows,
        disagreements=certified.disagreements,
        bound=round(certified.bound, 6),
        threshold=certified.threshold,
        test_rows=len(others),
        test_disagreements=int((whole.argmax(axis=-1) != sure.argmax(axis=-1)).sum()),
        windows=round(float(windows.mean()), 4),
        windows_read=round(float(read.mean()), 4),
        **records.provenance(),
    )


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """What records of windows say, as Markdown; draws of the same weights are one row."""
    if not lines:
        return NONE
    rows = [
        "| data | draws | documents that certify | windows of a document | read | fewer "
        "| differ, promised | differ, other documents |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for group in _groups(lines):
        first = group[0]
        certify = mean(one["tuned_rows"] + one["rows"] for one in group)
        windows, read = (mean(one[n] for one in group) for n in ("windows", "windows_read"))
        differ = sum(one["test_disagreements"] for one in group)
        cells = [first["data"], str(len(group)), f"{certify:,.0f}", f"{windows:.2f}"]
        cells += [f"{read:.2f}", f"{windows / read:.1f}x"]
        cells.append(f"≤ {100 * first['disagree_at_most']:g} %")
        cells.append(f"{100 * differ / sum(one['test_rows'] for one in group):.1f} %")
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _groups(lines: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    for key in dict.fromkeys(map(_key, lines)):
        yield [one for one in lines if _key(one) == key]


def _key(line: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("data", "stage", "runtime", "precision", "budget", "disagree_at_most")
    return tuple(line[name] for name in names)


def main() -> None:
    """Every draw that has no record yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--least", type=int, default=LEAST, help="tokens of a document")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    runtime = Runtime(asked.checkpoint, threads=asked.threads)
    names = ("runtime", "precision")
    mine = {name: runtime.identity[name] for name in names} | {"data": asked.data.name}
    mine |= {"stage": runtime.identity["weights"][:16], "least": asked.least}
    have = [one for one in records.read(asked.out) if mine.items() <= one.items()]
    todo = set(range(1, asked.draws + 1)) - {one["data_seed"] for one in have}
    if todo:
        texts = long_documents(asked.data, runtime, least=asked.least)
    for draw in sorted(todo):
        made = measure(runtime, texts, data=asked.data.name, draw=draw, least=asked.least)
        records.append(asked.out, made.to_dict())
    print(table(records.read(asked.out)))


if __name__ == "__main__":
    main()
