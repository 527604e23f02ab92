"""Changes the code for the worse, one place at a time, and sees whether a test notices.

    python tools/mutants.py [--only NAME …] [--jobs 2] [--list]

tools/mutants.toml lists the changes, each with the tests that should see it. They are made in a
copy of the tree, where only those tests are run. What no test notices is printed, and the exit
code is then 1; it is 2 where the list itself does not fit the code or the tests.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOME = Path(__file__).resolve().parent.parent
LIST = Path("tools") / "mutants.toml"
PACKAGE = Path("src") / "apportion"
KILLED, SURVIVED, BROKEN = "killed", "survived", "broken"
_LEFT = (".*", "runs", "dist", "__pycache__", "*.egg-info")  # not needed in a copy
_SECONDS = 600  # what takes longer says nothing: the machine may be busy


@dataclass(frozen=True)
class Mutant:
    """One change for the worse."""

    name: str
    file: str  # in src/apportion
    old: str  # stands there once
    new: str
    tests: tuple[str, ...]
    survives: bool = False  # known to, for this reason
    reason: str = ""


@dataclass(frozen=True)
class Outcome:
    """What the tests made of it."""

    mutant: Mutant
    verdict: str
    says: str  # the end of what pytest printed
    seconds: float


def read_mutants(home: Path) -> list[Mutant]:
    """The mutants in the list, each checked against the code that it is to change."""
    tables = tomllib.loads((home / LIST).read_text(encoding="utf-8"))["mutant"]
    mutants = [Mutant(**{**table, "tests": tuple(table["tests"])}) for table in tables]
    problems = [problem for mutant in mutants if (problem := _problem(mutant, home))]
    names = [mutant.name for mutant in mutants]
    problems += [f"two are called {name!r}" for name in sorted(set(names)) if names.count(name) > 1]
    if problems:
        raise ValueError(f"{LIST}: " + "\n".join(problems))
    return mutants


def _problem(mutant: Mutant, home: Path) -> str:
    """What is wrong with a mutant, if anything."""
    path = home / PACKAGE / mutant.file
    found = path.read_text(encoding="utf-8").count(mutant.old) if path.exists() else 0
    if found != 1:
        return f"{mutant.name!r}: {mutant.old!r} stands {found} times in {mutant.file}, not once"
    if mutant.old == mutant.new or not mutant.tests:
        return f"{mutant.name!r} changes nothing, or names no tests"
    if mutant.survives != bool(mutant.reason):
        return f"{mutant.name!r} needs a reason to survive, and no other mutant has one"
    return ""


def copy_tree(home: Path, place: Path) -> Path:
    """A copy of the project that can be changed."""
    return Path(shutil.copytree(home, place, ignore=shutil.ignore_patterns(*_LEFT), symlinks=True))


def run_tests(copy: Path, tests: Sequence[str]) -> tuple[int, str]:
    """The exit code of pytest in a copy, and the end of what it printed."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",  # a change within a second would not be seen as one
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        return -1, f"more than {_SECONDS} seconds"
    return done.returncode, "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])


def judge(mutant: Mutant, copy: Path) -> Outcome:
    """Makes the change in a copy, runs its tests there, and takes the change back."""
    path = copy / PACKAGE / mutant.file
    whole = path.read_text(encoding="utf-8")
    started = time.monotonic()
    path.write_text(whole.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        code, says = run_tests(copy, mutant.tests)
    finally:
        path.write_text(whole, encoding="utf-8")
    # Other codes are of tests that could not be found, read or ended: nobody saw the mutant.
    verdict = {0: SURVIVED, 1: KILLED}.get(code, BROKEN)
    return Outcome(mutant, verdict, says, time.monotonic() - started)


def hunt(mutants: Sequence[Mutant], home: Path, jobs: int = 1) -> Iterable[Outcome]:
    """What became of each mutant, as it is known. Without any, the tests have to pass."""
    with tempfile.TemporaryDirectory() as place:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copies.put(copy_tree(home, Path(place) / str(number)))
        copy = copies.get()
        code, says = run_tests(copy, sorted({test for m in mutants for test in m.tests}))
        if code:
            raise ValueError(f"the tests do not pass as they are:\n{says}")
        copies.put(copy)

        def take(mutant: Mutant) -> Outcome:
            copy = copies.get()
            try:
                return judge(mutant, copy)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(jobs) as pool:
            for done in as_completed([pool.submit(take, mutant) for mutant in mutants]):
                yield done.result()


def main(words: Sequence[str] | None = None, home: Path = HOME) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutants and no others")
    parser.add_argument("--jobs", type=int, default=1, help="so many at a time")
    parser.add_argument("--list", action="store_true", help="print the list and run nothing")
    asked = parser.parse_args(words)
    try:
        mutants = read_mutants(home)
        unknown = sorted(set(asked.only or ()) - {mutant.name for mutant in mutants})
        if unknown:
            raise ValueError(f"there is no mutant {', '.join(unknown)}")
        mutants = [mutant for mutant in mutants if not asked.only or mutant.name in asked.only]
        if asked.list:
            for mutant in mutants:
                known = " (survives)" if mutant.survives else ""
                print(f"{mutant.file}: {mutant.name}{known}")
            return 0
        outcomes = []
        for outcome in hunt(mutants, home, max(1, asked.jobs)):
            outcomes.append(outcome)
            done = f"{len(outcomes)}/{len(mutants)}"
            print(
                f"{done} {outcome.verdict} in {outcome.seconds:.0f} s: {outcome.mutant.name}",
                flush=True,
            )
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return _report(outcomes)


def _report(outcomes: Sequence[Outcome]) -> int:
    """Prints what is not as it should be; the exit code."""
    broken = [o for o in outcomes if o.verdict == BROKEN]
    survivors = [o for o in outcomes if o.verdict == SURVIVED and not o.mutant.survives]
    late = [o for o in outcomes if o.verdict == KILLED and o.mutant.survives]
    for outcome in survivors:
        change = f"{outcome.mutant.old.strip()} → {outcome.mutant.new.strip()}"
        print(f"survives: {outcome.mutant.name} ({outcome.mutant.file}: {change})")
    for outcome in late:
        print(f"listed as a survivor, and killed: {outcome.mutant.name}")
    for outcome in broken:
        print(f"its tests could not be run: {outcome.mutant.name}\n{outcome.says}")
    killed = sum(o.verdict == KILLED for o in outcomes)
    print(f"{killed} of {len(outcomes)} killed")
    return 2 if broken else 1 if survivors or late else 0


if __name__ == "__main__":
    raise SystemExit(main())
