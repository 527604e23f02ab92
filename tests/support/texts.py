"""A small set of texts in which a few words give each class away, as CSV files."""

from __future__ import annotations

import csv
import random
from pathlib import Path

CLUES = {
    "sport": ["goal", "match", "league", "coach"],
    "money": ["bank", "stock", "profit", "market"],
    "space": ["orbit", "rocket", "planet", "launch"],
}
FILLER = ("the", "a", "of", "and", "to", "in", "on", "for", "with", "new", "said", "that", "it")


def rows(count: int, seed: int) -> list[tuple[str, str]]:
    """Rows of label and text, between 5 and 15 words each."""
    draw = random.Random(seed)
    made = []
    for number in range(count):
        label = list(CLUES)[number % len(CLUES)]
        words = [draw.choice(FILLER) for _ in range(draw.randint(3, 11))] + [str(number + seed)]
        for _ in range(2):
            words.insert(draw.randrange(len(words)), draw.choice(CLUES[label]))
        made.append((label, " ".join(words)))
    return made


def write(path: Path, lines: list[tuple[str, ...]], header: tuple[str, ...] = ("label", "text")):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *lines] if header else lines)


def folder(home: Path, train: int = 120, test: int = 30) -> Path:
    """A folder with train.csv and test.csv."""
    home.mkdir(parents=True, exist_ok=True)
    write(home / "train.csv", rows(train, 1))
    write(home / "test.csv", rows(test, 5000))
    return home
