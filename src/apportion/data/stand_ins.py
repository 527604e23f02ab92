"""Stand-in texts that every machine has: docstrings, labelled with the package they come from.

They replace a data set where there is none: real sentences, several classes, no network. They
depend on the installed versions, so a number measured on them is no evidence.
"""

from __future__ import annotations

import ast
import csv
import io
import random
import warnings
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from apportion.files import write_text

_LEAST_WORDS = 6  # shorter docstrings say too little to be classified


def write_docstrings(
    folder: Path, packages: Sequence[str], train: int = 400, test: int = 100
) -> None:
    """Writes train.csv and test.csv: docstrings, each with the package that it comes from.

    At most `train` + `test` per package; subpackages that are listed themselves are skipped.
    """
    rows: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    for package in packages:
        inside = [other for other in packages if other.startswith(f"{package}.")]
        texts = list(islice(_different(_docstrings(package, inside)), train + test))
        if len(texts) < 10:
            raise ValueError(f"package {package!r} has {len(texts)} docstrings, which is too few")
        random.Random(7).shuffle(texts)
        held_out = min(test, len(texts) // 5)
        rows["test"] += [(package, text) for text in texts[:held_out]]
        rows["train"] += [(package, text) for text in texts[held_out:]]
    for name, labelled in rows.items():
        written = io.StringIO()
        writer = csv.writer(written, lineterminator="\n")
        writer.writerows([("label", "text"), *labelled])
        write_text(folder / f"{name}.csv", written.getvalue())


def _different(texts: Iterator[str]) -> Iterator[str]:
    seen: set[str] = set()
    for text in texts:
        if text not in seen:
            seen.add(text)
            yield text


def _docstrings(package: str, excluded: Sequence[str]) -> Iterator[str]:
    """The beginnings of a package's docstrings, in the order of its files, which are not run."""
    top, *below = package.split(".")
    spec = find_spec(top)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"package {top!r} is not installed")
    root = Path(spec.submodule_search_locations[0])
    skipped = {root.joinpath(*other.split(".")[1:]) for other in excluded}
    for path in sorted(root.joinpath(*below).rglob("*.py")):
        if "tests" in path.relative_to(root).parts or skipped & set(path.parents):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in files that are not ours
                tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError):
            continue  # templates, other encodings, files for other versions of Python
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Module):
                text = " ".join((ast.get_docstring(node) or "").split())
                if len(text.split()) >= _LEAST_WORDS:
                    yield text[:1000]
