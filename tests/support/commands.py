"""Commands as people type them."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

import pytest

from apportion import cli

TRAIN = "train --rows 64 --length 12 --epochs 1 --budgeted-epochs 1 --hidden 16 --heads 4"


class Done(NamedTuple):
    """What came of a command."""

    code: int
    out: str
    err: str


def run(capsys, *words: str) -> Done:
    """The exit code, stdout and stderr of a command."""
    code, said = _call(words)
    captured = capsys.readouterr()
    return Done(code, captured.out, captured.err + said)


def call(*words: str) -> Done:
    """The same for a fixture that several tests share; the command has to succeed."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code, said = _call(words)
    assert code == 0, said
    return Done(code, out.getvalue(), err.getvalue() + said)


def _call(words: tuple[str, ...]) -> tuple[int, str]:
    """The exit code of a command, and what it printed to its console."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["apportion", *words])
        # The console of the commands, whoever else has put his hand on stderr.
        rooms = [room for name, room in sys.modules.items() if name.startswith("apportion.cli")]
        for room in rooms:
            if hasattr(room, "err"):
                patch.setattr(room.err, "_file", said)
        with pytest.raises(SystemExit) as stop:
            cli.main()
    return int(stop.value.code or 0), said.getvalue()
