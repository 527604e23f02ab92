from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from apportion import files, tensor_files


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.txt"
    files.write_text(path, "good")
    with pytest.raises(RuntimeError), files.replacing(path) as part:
        part.write_text("ba")
        raise RuntimeError("killed")
    assert path.read_text() == "good"
    assert list(tmp_path.iterdir()) == [path]


KILLED_WRITE = """
import os, sys
from pathlib import Path
from apportion.files import replacing
with replacing(Path(sys.argv[1])) as part:
    part.write_text("half")
    os.kill(os.getpid(), 9)
"""


def test_what_a_killed_write_leaves_is_removed_by_the_next_one(tmp_path):
    """Of the same file alone: those of others, and of who is still writing, stay."""
    path = tmp_path / "a.txt"
    for name in ("a.txt", "a.txt.old"):
        done = subprocess.run([sys.executable, "-c", KILLED_WRITE, str(tmp_path / name)])
        assert done.returncode == -9
    assert len(list(tmp_path.iterdir())) == 2
    with files.replacing(path) as slow:
        slow.write_text("slow")
        files.write_text(path, "quick")
        assert slow.exists()
        left = {p.name for p in tmp_path.iterdir()} - {"a.txt", slow.name}
        assert len(left) == 1 and left.pop().startswith(".a.txt.old.")
    assert path.read_text() == "slow"
    files.discard(tmp_path / "a.txt.old")
    assert list(tmp_path.iterdir()) == [path]


def test_parts_of_another_machine_or_of_a_running_process_stay(tmp_path):
    path = tmp_path / "a"
    with files.replacing(path) as part:
        _, machine, number = part.name.removeprefix(".a.").removesuffix(".part").split("-")
    names = {
        f".a.{os.getppid()}-{machine}-{number}.part": True,
        f".a.999999999-00000000-{number}.part": True,
        f".a.999999999-{machine}-{number}.part": False,
        f".a.{os.getpid()}-{machine}-{number}.part": False,  # of one before with the same number
        ".a.b.part": True,
    }
    for name in names:
        (tmp_path / name).write_text("half")
    files.write_text(path, "whole")
    assert {name for name in names if (tmp_path / name).exists()} == {n for n in names if names[n]}


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "link").symlink_to("real.txt")
    for text in ("one", "two"):
        files.write_text(tmp_path / "link", text)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "two"


def test_every_file_has_the_mode_that_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        files.write_text(tmp_path / "text", "x")
        with files.replacing(tmp_path / "tensors") as part:
            tensor_files.save_tensors({"a": torch.zeros(2)}, part)
        tensor_files.save_tensors({"a": torch.zeros(2)}, tmp_path / "more")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("text", "tensors", "more"), 0o640)


HOLD = """
import sys, time
from pathlib import Path
from apportion.files import holding
with holding(*map(Path, sys.argv[1:])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder():
    """Starts processes that hold some paths, and ends them."""
    started = []

    def start(*paths: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLD, *map(str, paths)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout and process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_what_another_process_holds_is_refused_at_once(tmp_path, holder):
    (tmp_path / "link").symlink_to("out")
    process = holder(tmp_path / "out")
    started = time.monotonic()
    for path in (tmp_path / "out", tmp_path / "link"):
        with (
            pytest.raises(OSError, match=f"another process is writing .*{path.name}"),
            files.holding(tmp_path / "other", path),
        ):
            pass
    assert time.monotonic() - started < 5
    with files.holding(tmp_path / "other") as locked:
        assert locked
    process.kill()
    process.wait()
    with files.holding(tmp_path / "out"):  # the lock died with its process
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_a_place_is_held_once_in_a_process_too(tmp_path):
    with (
        files.holding(tmp_path / "out", tmp_path / "out"),
        pytest.raises(OSError, match="another process is writing"),
        files.holding(tmp_path / "out"),
    ):
        pass


def test_without_locks_work_goes_on(tmp_path, monkeypatch):
    def none(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", none)
    with files.holding(tmp_path / "out") as locked:
        assert not locked


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "not readable as JSON: Exceeds the limit"),
        ('{"a": NaN}', "NaN is no number of JSON"),
        ('{"a": -Infinity}', "-Infinity is no number of JSON"),
        ('{"a": ', "not readable as JSON"),
        ("[1]", "does not hold a JSON object"),
        ("\udcff", "not readable as JSON"),
        (None, "not readable as JSON"),
    ],
)
def test_json_that_is_not_a_table_is_refused_in_one_sentence(tmp_path, text, says):
    path = tmp_path / "a.json"
    if text is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=says) as refused:
        files.read_json(path)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)


def test_what_can_not_be_read_again_is_not_written():
    for value in (float("nan"), {1, 2}):
        with pytest.raises(ValueError, match="the notes can't be written as JSON"):
            files.json_text({"a": value}, "the notes")


def test_damaged_tensors_are_refused_in_one_sentence(tmp_path):
    path = tmp_path / "a.safetensors"
    tensor_files.save_tensors({"a": torch.arange(4.0), "b": torch.zeros(2, 0)}, path)
    assert tensor_files.read_shapes(path) == {"a": ("F32", (4,)), "b": ("F32", (2, 0))}
    assert tensor_files.read_tensors(path)["a"].tolist() == [0.0, 1.0, 2.0, 3.0]
    whole = path.read_bytes()
    header = json.dumps({"a": {"dtype": "F32", "shape": [10**30], "data_offsets": [0, 16]}})
    for data in (
        b"",
        whole[:9],
        whole[:-1],
        b"\xff" * 8 + whole[8:],
        len(header).to_bytes(8, "little") + header.encode() + bytes(16),
    ):
        path.write_bytes(data)
        for read in (tensor_files.read_shapes, tensor_files.read_tensors):
            with pytest.raises(ValueError, match="not readable as safetensors") as refused:
                read(path)
            assert "\n" not in str(refused.value)
