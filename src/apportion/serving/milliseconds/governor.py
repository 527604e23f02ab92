"""Governing: a budget from the state of the machine, by a small table in a TOML file.

budget = 1.0            # while no rule holds
hold = 5.0              # seconds that a rule goes on after what it waited for
every = 1.0             # seconds between two looks at the machine

[[rule]]
signal = "pressure"     # pressure, queue, load, busy, battery or headroom
above = 40.0            # it holds from here on (or: below)
until = 20.0            # until the signal is back here
budget = 0.5
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, get_type_hints

from apportion.files import check
from apportion.serving.milliseconds.machine import SIGNALS, Machine

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# For a machine that has other things to do, and perhaps a battery and no fan.
_SLACK = 1e-6  # as everywhere: a budget of 0.1 + 0.2 pays for 0.3
USUAL = """
[[rule]]
signal = "pressure"
above = 40.0
until = 20.0
budget = 0.5

[[rule]]
signal = "pressure"
above = 75.0
until = 50.0
budget = 0.25

[[rule]]
signal = "battery"
below = 20.0
until = 30.0
budget = 0.25

[[rule]]
signal = "headroom"
below = 5.0
until = 10.0
budget = 0.25
"""


@dataclass(frozen=True)
class Rule:
    """A budget for as long as a signal is too high, or too low."""

    signal: str
    budget: float
    above: float | None = None
    below: float | None = None
    until: float | None = None  # where it ends; at the same place, if it is not said

    def __post_init__(self) -> None:
        if self.signal not in SIGNALS:
            raise ValueError(f"a signal is one of {', '.join(SIGNALS)}, not {self.signal!r}")
        _check_budget(self.budget)
        if (self.above is None) == (self.below is None):
            raise ValueError(f"a rule of {self.signal} has either above or below")
        end = self.until
        late = end is not None and (
            (self.above is not None and end > self.above)
            or (self.below is not None and end < self.below)
        )
        if late:
            raise ValueError(
                f"a rule of {self.signal} ends at {end:g}, where it would have begun already"
            )

    def holds(self, value: float | None, held: bool) -> bool:
        """Whether it holds at a value of its signal, having held before or not."""
        if value is None:
            return False
        if self.above is not None:
            return value >= self.above or (held and self.until is not None and value > self.until)
        assert self.below is not None
        return value <= self.below or (held and self.until is not None and value < self.until)

    def __str__(self) -> str:
        way, bound = ("above", self.above) if self.above is not None else ("below", self.below)
        return f"{self.signal} {way} {bound:g}"


@dataclass(frozen=True)
class Rules:
    """The table of a governor."""

    rule: tuple[Rule, ...] = ()
    budget: float = 1.0  # while no rule holds
    hold: float = 5.0  # seconds that a rule goes on after what it waited for
    every: float = 1.0  # seconds between two looks at the machine

    def __post_init__(self) -> None:
        _check_budget(self.budget)
        for name in ("hold", "every"):
            if not 0.0 <= getattr(self, name) < 1e9:
                raise ValueError(f"{name} is a number of seconds, not {getattr(self, name)!r}")


@dataclass(frozen=True)
class Decision:
    """A budget, and the rules that it is because of, with the time at which each last held."""

    budget: float
    held: Mapping[int, float] = field(default_factory=dict)  # by the rule's place in the table


def decide(
    rules: Rules, readings: Mapping[str, float], *, before: Decision, now: float
) -> Decision:
    """The smallest budget of the rules that hold. Pure: readings and the time are given.

    A rule begins at once. It ends once its signal has been back at its `until` for `hold` seconds,
    so that a budget that falls and the load that falls with it do not chase each other.
    """
    held = {}
    for place, rule in enumerate(rules.rule):
        last = before.held.get(place)
        if rule.holds(readings.get(rule.signal), last is not None):
            held[place] = now
        elif last is not None and now - last < rules.hold:
            held[place] = last
    budgets = [rules.rule[place].budget for place in held]
    return Decision(min([rules.budget, *budgets]), held)


def read_rules(path: str | Path) -> Rules:
    """The table in a TOML file, checked."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not readable as TOML: {error}") from None
    return rules_of(values, str(path))


def rules_of(values: Mapping[str, Any], where: str) -> Rules:
    """A table of plain values as rules."""
    found = {name: value for name, value in values.items() if name != "rule"}
    listed = values.get("rule", [])
    hints = get_type_hints(Rules)
    check(where, found, {name: hint for name, hint in hints.items() if name != "rule"})
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise ValueError(f"{where}: rules stand in tables called [[rule]]")
    rules = []
    for number, one in enumerate(listed, start=1):
        place = f"{where}: rule {number}"
        check(place, one, get_type_hints(Rule))
        missing = {"signal", "budget"} - set(one)
        if missing:
            raise ValueError(f"{place} has no {' and no '.join(sorted(missing))}")
        try:
            rules.append(Rule(**one))
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
    try:
        return Rules(tuple(rules), **found)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


class Governor:
    """A budget that follows the machine: `runtime.predict(texts, budget=governor.budget())`.

    By the rules of a TOML file or, without one, by the usual ones: less while tasks wait for
    processors, while a battery runs low, and while it is nearly too hot. `read` may stand for the
    machine: it returns a number for each signal. Threads may share a governor.
    """

    def __init__(
        self,
        file: str | Path | None = None,
        *,
        read: Callable[[], Mapping[str, float]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        usual = rules_of(tomllib.loads(USUAL), "the usual rules")
        self._rules = usual if file is None else read_rules(file)
        self._read = read or Machine()
        self._clock, self._lock = clock, Lock()
        self._decision = Decision(self._rules.budget)
        self._readings: Mapping[str, float] = {}
        self._looked: float | None = None

    def budget(self) -> float:
        """The budget now. It looks at the machine if the last look was long enough ago."""
        with self._lock:
            now = self._clock()
            if self._looked is None or now - self._looked >= self._rules.every:
                self._looked, self._readings = now, self._read()
                self._decision = decide(self._rules, self._readings, before=self._decision, now=now)
            return self._decision.budget

    def level(self, levels: Sequence[float]) -> float:
        """The highest of some levels that the budget pays for; the lowest, if it pays for none."""
        budget = self.budget()
        paid = (level for level in levels if level <= budget + _SLACK)
        return max(paid, default=min(levels))

    @property
    def reasons(self) -> tuple[str, ...]:
        """The rules that held at the last look, each in a few words."""
        return tuple(
            f"{self._rules.rule[place]}: {self._readings[self._rules.rule[place].signal]:.3g}"
            if self._rules.rule[place].signal in self._readings
            else str(self._rules.rule[place])
            for place in self._decision.held
        )

    @property
    def readings(self) -> dict[str, float]:
        """What the machine told at the last look, by signal."""
        return dict(self._readings)

    @property
    def untold(self) -> tuple[str, ...]:
        """Signals that rules wait for and that this machine does not tell: those never hold."""
        asked = {rule.signal for rule in self._rules.rule}
        with self._lock:
            told = set(self._readings or self._read())
        return tuple(sorted(asked - told))


def _check_budget(budget: float) -> None:
    if not 0.0 < budget <= 1.0:
        raise ValueError(f"a budget is a number in (0, 1], not {budget!r}")
