"""Routing: a file that says, per value of a tag column, how and by which model texts are answered.

    tag = "topic"              # the column; or --tag

    [default]                  # for tags that are not named; without it, their rows are refused
    budget = 0.5

    [tags.sport]
    budget = 0.25

    [tags.law]
    certificate = "certificate.json"   # paths are taken from the file's own folder

    [tags.chat]
    within_ms = 20.0

    [tags.reviews]
    folder = "../reviews/onnx"

A route without a budget, a certificate or milliseconds is the whole model's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from apportion.data.rows import BadRow, Row
from apportion.files import check
from apportion.serving.batch.answering import Answer, answers_to
from apportion.serving.guarantees.cascade import Cascade
from apportion.serving.guarantees.certificate import Certificate
from apportion.serving.milliseconds.forecast import Deadline
from apportion.serving.runtime.prediction import CHUNK, batches_of, softmax
from apportion.serving.runtime.session import Runtime

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Route:
    """How texts of a tag are answered."""

    folder: str | None = None  # None: the folder of the command
    budget: float | None = None
    certificate: str | None = None
    within_ms: float | None = None


@dataclass(frozen=True)
class Routing:
    """What a routing file says."""

    path: Path
    tag: str | None
    tags: dict[str, Route]
    default: Route | None

    def route_of(self, tag: str) -> Route:
        """The route of a tag, or the default; without one, an error that names the known tags."""
        route = self.tags.get(tag, self.default)
        if route is None:
            known = ", ".join(map(repr, sorted(self.tags)))
            raise ValueError(
                f"the tag {tag!r} has no route, and there is no default; known: {known}"
            )
        return route


def read_routing(path: Path) -> Routing:
    """A routing file, checked: unknown keys and routes that say two things are errors."""
    if not path.is_file():
        raise ValueError(f"there is no routing file {path}")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not readable as TOML: {error}") from None
    check(str(path), values, {"tag": str, "tags": dict[str, Any], "default": dict[str, Any]})
    tags = values.get("tags", {})
    check(f"{path}, [tags]", tags, dict.fromkeys(tags, dict[str, Any]))
    routes = {tag: _route(f"{path}, [tags.{tag}]", table) for tag, table in tags.items()}
    default = values.get("default")
    if not routes and default is None:
        raise ValueError(f"{path} names no route; write a table such as [tags.sport]")
    return Routing(
        path,
        values.get("tag"),
        routes,
        None if default is None else _route(f"{path}, [default]", default),
    )


def _route(where: str, table: Mapping[str, Any]) -> Route:
    check(where, table, get_type_hints(Route))
    ways = [name for name in ("budget", "certificate", "within_ms") if name in table]
    if len(ways) > 1:
        raise ValueError(f"{where} has {' and '.join(ways)}; a route has one of them")
    for name in ("budget", "within_ms"):
        if name in table and not 0.0 < table[name] <= (1.0 if name == "budget" else 1e9):
            wanted = "in (0, 1]" if name == "budget" else "above 0"
            raise ValueError(f"{where} {name} must be {wanted}, not {table[name]!r}")
    return Route(**{one.name: table.get(one.name) for one in fields(Route)})


class Timely:
    """A runtime that gives each call so many milliseconds, by its forecast."""

    def __init__(
        self, runtime: Runtime, ms: float, *, tell: Callable[[str], None] | None = None
    ) -> None:
        Deadline(runtime.forecast, ms)  # complains now where there is no forecast
        self.runtime, self.ms, self._tell = runtime, ms, tell

    def answer(
        self, encoded: Sequence[Sequence[int]], *, batch: int = 32
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The probabilities [rows, classes] of encoded rows, and the level that answered each."""
        likely = np.empty((len(encoded), len(self.runtime.classes)))
        levels = np.empty(len(encoded))
        for places, inputs in batches_of(self.runtime.tokenizer, encoded, batch):
            deadline = Deadline(self.runtime.forecast, self.ms, tell=self._tell)
            level = deadline.level([inputs["input_ids"].shape])
            logits = self.runtime(**inputs, budget=level)
            if not np.isfinite(logits).all():
                raise ValueError(f"the model answers with numbers that are none, at {level:g}")
            likely[places] = softmax(logits)
            levels[places] = level
        return likely, levels


class Router:
    """Answers rows by the routes of their tags; each folder is loaded once."""

    def __init__(
        self,
        routing: Routing,
        runtime: Runtime,
        *,
        batch: int = 32,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.routing, self.batch, self._tell = routing, batch, tell
        self._home = routing.path.parent
        self._runtimes: dict[Path | None, Runtime] = {None: runtime}
        self._cascades: dict[Route, Cascade | Timely] = {}
        # All of them now: a route that can't be run must not be found in the middle of a file.
        every = [*routing.tags.values(), *([routing.default] if routing.default else [])]
        for route in every:
            self._cascades[route] = self._cascade(route)
        names = (name for route in every for name in self._runtime(route).classes)
        self.classes = tuple(dict.fromkeys(names))

    def _runtime(self, route: Route) -> Runtime:
        folder = None if route.folder is None else (self._home / route.folder).resolve()
        if folder not in self._runtimes:
            assert folder is not None
            self._runtimes[folder] = Runtime(folder, threads=self._runtimes[None].threads)
        return self._runtimes[folder]

    def _cascade(self, route: Route) -> Cascade | Timely:
        runtime = self._runtime(route)
        if route.within_ms is not None:
            return Timely(runtime, route.within_ms, tell=self._tell)
        if route.certificate is not None:
            return Cascade.certified(runtime, Certificate.load(self._home / route.certificate))
        budget = runtime.levels[-1] if route.budget is None else route.budget
        return Cascade.at(runtime, budget)

    def answer(
        self, rows: Iterable[Row | BadRow], *, chunk: int = CHUNK
    ) -> Iterator[Answer | BadRow]:
        """An answer for each row, in order; a row's label is its tag.

        A row whose tag has no route is one that can't be answered, and names its line.
        """
        group: list[Row | BadRow] = []
        for row in rows:
            group.append(self._checked(row))
            if len(group) >= chunk:
                yield from self._answer(group)
                group = []
        yield from self._answer(group)

    def _checked(self, row: Row | BadRow) -> Row | BadRow:
        if isinstance(row, BadRow):
            return row
        try:
            self.routing.route_of(row.label)
        except ValueError as error:
            return BadRow(row.line, str(error))
        return row

    def _answer(self, group: Sequence[Row | BadRow]) -> Iterator[Answer | BadRow]:
        good: dict[Route, list[Row]] = {}
        for row in group:
            if isinstance(row, Row):
                good.setdefault(self.routing.route_of(row.label), []).append(row)
        found: dict[int, Answer] = {}
        for route, rows in good.items():
            cascade = self._cascades[route]
            encoded = cascade.runtime.tokenizer.encode([row.text for row in rows])
            likely, levels = cascade.answer(encoded, batch=self.batch)
            for one in answers_to(rows, likely, levels, cascade.runtime.classes):
                found[one.line] = one
        yield from (row if isinstance(row, BadRow) else found[row.line] for row in group)
