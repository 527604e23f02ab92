"""The hunt for changes that no test sees, on a project of one line."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parent.parent / "tools" / "mutants.py"
CODE = "def double(number):\n    return 2 * number + 0\n"
SEEN = {"name": "no double", "file": "sums.py", "old": "2 * number", "new": "number"}
UNSEEN = {"name": "nothing added", "file": "sums.py", "old": " + 0", "new": " + 0 * number"}
TESTS = ["tests/test_sums.py::test_two"]


@pytest.fixture
def mutants(monkeypatch):
    spec = importlib.util.spec_from_file_location("mutants", TOOL)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mutants", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def hunt(mutants, tmp_path, capsys, monkeypatch):
    package = tmp_path / "src" / "apportion"
    for folder in (package, tmp_path / "tests", tmp_path / "tools"):
        folder.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "sums.py").write_text(CODE)
    test = "from apportion.sums import double\n\ndef test_two():\n    assert double(2) == 4\n"
    (tmp_path / "tests" / "test_sums.py").write_text(test)

    def stand_in(copy, tests):
        """The exit code that pytest would have, without the time that it takes."""
        if list(tests) != TESTS:
            return 4, "not found"
        names = {}
        try:
            exec((copy / "src" / "apportion" / "sums.py").read_text(), names)
        except SyntaxError as error:
            return 2, str(error)
        return int(names["double"](2) != 4), ""

    def hunt(*listed, words=(), real=False):
        if not real:
            monkeypatch.setattr(mutants, "run_tests", stand_in)
        text = ""
        for mutant in listed:
            facts = {"tests": TESTS, **mutant}
            lines = [f"{key} = {json.dumps(value)}\n" for key, value in facts.items()]
            text += "[[mutant]]\n" + "".join(lines)
        (tmp_path / "tools" / "mutants.toml").write_text(text)
        code = mutants.main(words, tmp_path)
        shown = capsys.readouterr()
        assert (package / "sums.py").read_text() == CODE  # only copies are changed
        return code, shown.out + shown.err

    return hunt


def test_a_change_is_made_in_a_copy_and_its_tests_run_there(hunt):
    code, shown = hunt(SEEN, real=True)
    assert code == 0 and "1/1 killed" in shown and shown.endswith("1 of 1 killed\n")


def test_what_no_test_sees_is_named(hunt):
    code, shown = hunt(SEEN, UNSEEN, words=["--jobs", "2"])
    assert code == 1
    assert "survives: nothing added (sums.py: + 0 → + 0 * number)" in shown
    assert "1 of 2 killed" in shown and "survives: no double" not in shown
    code, shown = hunt(SEEN, UNSEEN, words=["--only", "no double"])
    assert code == 0 and "1 of 1 killed" in shown


def test_a_survivor_that_is_known_has_a_reason_and_stays_one(hunt):
    code, _ = hunt({**UNSEEN, "survives": True, "reason": "the same sum"})
    assert code == 0
    code, shown = hunt({**SEEN, "survives": True, "reason": "nobody doubles"})
    assert code == 1 and "listed as a survivor, and killed: no double" in shown


def test_tests_that_are_not_there_kill_nothing(hunt):
    """Nor those that fail without any change."""
    code, shown = hunt({**SEEN, "tests": ["tests/test_sums.py::test_three"]})
    assert code == 2 and "do not pass as they are" in shown
    code, shown = hunt({**SEEN, "new": ")"})  # no longer Python
    assert code == 2 and "its tests could not be run: no double" in shown


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"old": "3 * number"}, "stands 0 times in sums.py, not once"),
        ({"old": "number"}, "stands 2 times in sums.py, not once"),
        ({"file": "none.py"}, "stands 0 times in none.py"),
        ({"new": "2 * number"}, "changes nothing"),
        ({"tests": []}, "names no tests"),
        ({"survives": True}, "needs a reason"),
    ],
)
def test_a_list_that_does_not_fit_the_code_is_refused(hunt, change, says):
    code, shown = hunt({**SEEN, **change}, words=["--list"])
    assert code == 2 and says in shown


def test_the_list_is_printed_and_names_are_checked(hunt):
    assert hunt(SEEN, words=["--list"]) == (0, "sums.py: no double\n")
    code, shown = hunt(SEEN, words=["--only", "nobody"])
    assert code == 2 and "there is no mutant nobody" in shown
    code, shown = hunt(SEEN, SEEN, words=["--list"])
    assert code == 2 and "two are called 'no double'" in shown


def test_every_listed_change_fits_the_code_and_names_tests_that_are_there(mutants):
    home = TOOL.parents[1]
    listed = mutants.read_mutants(home)
    assert len(listed) > 80
    for test in {test for mutant in listed for test in mutant.tests}:
        file, _, name = test.partition("::")
        text = (home / file).read_text(encoding="utf-8")
        assert not name or f"def {name.partition('[')[0]}(" in text, test
