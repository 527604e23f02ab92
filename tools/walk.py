"""How far a command's data walks through the modules: traces real commands and counts.

    python tools/walk.py [train convert predict reproduce]

Each way is run for real on a small model and a few texts. An entry is a function of one module that
calls a function of another, counted once however often it happens. A return is an entry into a
module that the data had been in before: entries less modules.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

HOME = Path(__file__).resolve().parent.parent
PLAN = HOME / "experiments" / "paper.toml"
WAYS = ("train", "convert", "predict", "reproduce")


class Walk:
    """The entries of one run; installed as the profiler of all its threads."""

    def __init__(self) -> None:
        self.entries: set[tuple[CodeType, CodeType]] = set()
        self.modules: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Takes note of a call into another module of the package."""
        if event != "call":
            return
        here = _module(frame)
        if here is None or frame.f_code.co_name == "<module>":
            return
        before = frame.f_back
        while before is not None and _module(before) is None:
            before = before.f_back
        if before is None or before.f_code.co_name == "<module>" or _module(before) == here:
            return
        self.modules.add(here)
        self.entries.add((before.f_code, frame.f_code))


def _module(frame: FrameType) -> str | None:
    name = str(frame.f_globals.get("__name__", ""))
    return name if name.startswith("apportion.") else None


def walked(words: list[str]) -> dict[str, int]:
    """Runs a command in this process and counts its way."""
    from apportion.cli import main

    walk = Walk()
    sys.argv = ["apportion", *words]
    threading.setprofile(walk)
    sys.setprofile(walk)
    try:
        main()
    except SystemExit as end:
        if end.code not in (0, None):
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    entries, modules = len(walk.entries), len(walk.modules)
    return {"modules": modules, "entries": entries, "returns": entries - modules}


def way(name: str, home: Path) -> dict[str, int]:
    """Counts one of the ways in a process of its own, on what stands in a folder."""
    words = {
        "train": [
            "train",
            "--data",
            "texts",
            "--model",
            "encoder",
            "--units",
            "all",
            "--length",
            "24",
        ],
        "convert": ["convert", "classifier", "--data", "texts", "--length", "24"],
        "predict": ["predict", "runs/converted/checkpoint", "texts/test.csv", "-b", "0.5"],
        "reproduce": ["reproduce", "short", "--quick", "--jobs", "1", "--plan", str(PLAN)],
    }[name]
    command = [sys.executable, str(Path(__file__).resolve()), "--here", *words]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return dict(json.loads(done.stderr.strip().splitlines()[-1]))


def main() -> None:
    """Prints a JSON line for each way."""
    if sys.argv[1:2] == ["--here"]:
        counted = walked(sys.argv[2:])
        print(json.dumps(counted), file=sys.stderr)
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ways", nargs="*", choices=[[], *WAYS], default=[])
    asked = parser.parse_args().ways or WAYS
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for place in ("tests", "tests/support"):
        sys.path.insert(0, str(HOME / place))
    from pretrained import write_classifier, write_pretrained
    from texts import CLUES, folder

    with tempfile.TemporaryDirectory() as home:
        folder(Path(home) / "texts")
        write_pretrained(Path(home) / "encoder")
        write_classifier(Path(home) / "classifier", sorted(CLUES))
        for name in asked:
            print(json.dumps({"way": name, **way(name, Path(home))}), flush=True)


if __name__ == "__main__":
    main()
