"""Records of a comparison of runtimes → tables: speed, answers, memory, beside the goals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from apportion.serving.bench.peers import NAMED, PEERS
from apportion.study.comparison import Comparison
from apportion.study.peer_measuring import GROUPED
from apportion.study.report.peer_goals import measured_on, of_kind, peer_goal_table
from apportion.study.report.query import Records, asked
from apportion.study.report.table import Table

_SERVED = {
    "nothing": "a process without a model",
    "onnxruntime": "dense",
    "file": "one file, all levels",
    "onnxruntime-int8": "dense, dynamic int8",
    "onnxruntime-int8-products": "dense, dynamic int8 of products alone",
    "file-int8": "one file, all levels, int8",
    "one-session-per-level": "one session per level, int8",
}
_SUMMARISED = (0.125, 0.25, 0.5, 1.0)
_HOW_TIMED = (
    "Milliseconds are medians for all calls of a repeat; a ratio is the median of paired ratios "
    "with its 95 % interval. Arms take turns call by call, and idle threads of ONNX Runtime do not "
    "spin. `grouped`: real rows, those of like length together."
)
Record = Mapping[str, Any]


def comparison_tables(plan: Comparison, records: Records) -> list[Table]:
    """Every table of a comparison; those that have no records yet are empty."""
    newest = _newest(records)
    tables = [peer_goal_table(plan, newest), _summary_table(plan, newest)]
    for subject in plan.subjects:
        own = [r for r in newest if r["subject"] == subject]
        name = subject.lower().replace(" ", "-")
        for threads in plan.threads:
            of_threads = [r for r in own if r.get("threads", threads) == threads]
            where = f"{name}-{threads}"
            with_threads = f"{subject}, {threads} thread{'s' * (threads > 1)}"
            tables += [
                _speed_table(plan, of_threads, f"speed-{where}", with_threads),
                _beside_table(plan, of_threads, f"beside-int8-{where}", with_threads),
            ]
            if any("joules" in r for r in of_threads):
                tables.append(_energy_table(plan, of_threads, f"energy-{where}", with_threads))
        tables += [
            _answers_table(own, f"answers-{name}", subject),
            _memory_table(own, f"memory-{name}", subject),
        ]
    return [*tables, _machines_table(plan, records), _left_out_table(newest)]


def _newest(records: Records) -> list[Record]:
    """The records of each subject's newest weights, and of those the newest that say the same."""
    weights = {r["subject"]: r["weights"] for r in records}
    found: dict[tuple[Any, ...], Record] = {}
    for r in records:
        if r["weights"] == weights[r["subject"]]:
            names = ("kind", "subject", "arm", "level", "shape", "threads", "served")
            found[tuple(r.get(name) for name in names)] = r
    return list(found.values())


def _summary_table(plan: Comparison, records: Records) -> Table:
    """Every way at a few levels, one thread: how right, and how fast at two shapes."""
    shapes = tuple(dict.fromkeys((plan.shapes[0], plan.smallest)))
    timed = {
        (r["subject"], r["arm"], r["level"], r["shape"]): r["over"]
        for r in of_kind(records, "peer_latency")
        if r["threads"] == plan.threads[0]
    }
    right = {
        (r["subject"], r["arm"], r["level"]): f"{100 * r['accuracy']:.1f}"
        for r in of_kind(records, "peer_answers")
    }
    rows = []
    for arm, level in _in_order({(arm, level) for _, arm, level, _ in timed}):
        if level not in _SUMMARISED:
            continue
        ratios = [[timed.get((one, arm, level, s), {}) for one in plan.subjects] for s in shapes]
        rows.append(
            (
                NAMED[arm].words,
                asked(level),
                *(right.get((one, arm, level), "–") for one in plan.subjects),
                *(
                    " / ".join(f"{over['torch'][0]:.1f}x" if over else "–" for over in of_shape)
                    for of_shape in ratios
                ),
            )
        )
    columns = ("way", "level", *(f"{one}, %" for one in plan.subjects), *shapes)
    note = (
        f"Accuracy on test rows, and speed over torch eager ({' / '.join(plan.subjects)}), "
        f"{plan.threads[0]} thread. {measured_on(records)}"
    )
    return Table("summary", "Ways to run a checkpoint", columns, tuple(rows), note)


def _speed_table(plan: Comparison, records: Records, name: str, title: str) -> Table:
    """Every arm at every shape, beside torch eager, with its accuracy."""

    def cell(r: Record) -> str:
        over = r["over"].get("torch")
        return f"{r['median_ms']:.1f} ms" + (f", {_times(over)}" if over else "")

    note = f"Ratios are over torch eager. {_HOW_TIMED} {measured_on(records)}"
    return _by_shape(plan, records, name, f"Speed, {title}", cell, note)


def _beside_table(plan: Comparison, records: Records, name: str, title: str) -> Table:
    """The same, beside ONNX Runtime's dynamic int8."""

    def cell(r: Record) -> str:
        over = r["over"].get("onnxruntime-int8")
        return _times(over) if over else "–"

    note = f"Ratios are over ONNX Runtime's dynamic int8 of the dense model. {measured_on(records)}"
    return _by_shape(plan, records, name, f"Beside dense int8, {title}", cell, note)


def _energy_table(plan: Comparison, records: Records, name: str, title: str) -> Table:
    note = "Joules per row by the processor's counters, everything on the machine included."
    return _by_shape(
        plan,
        [r for r in records if r["kind"] != "peer_latency" or "joules" in r],
        name,
        f"Energy, {title}",
        lambda r: f"{r['joules']:.3g}",
        note,
    )


def _by_shape(
    plan: Comparison,
    records: Records,
    name: str,
    title: str,
    cell: Callable[[Record], str],
    note: str,
) -> Table:
    timed = {(r["arm"], r["level"], r["shape"]): r for r in of_kind(records, "peer_latency")}
    accuracy = {(r["arm"], r["level"]): r["accuracy"] for r in of_kind(records, "peer_answers")}
    rows = []
    for arm, level in _in_order({(arm, level) for arm, level, _ in timed}):
        own = accuracy.get((arm, level))
        cells = [cell(timed[at]) if (at := (arm, level, s)) in timed else "–" for s in plan.timed]
        right = "–" if own is None else f"{100 * own:.2f}"
        rows.append((NAMED[arm].words, asked(level), right, *cells))
    counts = {shape: f"{shape}, {r['rows']} rows" for (_, _, shape), r in timed.items()}
    named = (counts.get(shape, shape) if shape == GROUPED else shape for shape in plan.timed)
    columns = ("way", "level", "accuracy, %", *named)
    return Table(name, title, columns, tuple(rows), note)


def _answers_table(records: Records, name: str, subject: str) -> Table:
    """How right each arm is, and how near to what it has to answer like."""
    found = {(r["arm"], r["level"]): r for r in of_kind(records, "peer_answers")}
    rows = []
    for at in _in_order(set(found)):
        r = found[at]
        rows.append(
            (
                NAMED[r["arm"]].words,
                asked(r["level"]),
                f"{100 * r['accuracy']:.2f}",
                NAMED[r["beside"]].words,
                f"{100 * r['agreement']:.2f}",
                f"{r['difference']:.2g}",
                f"{100 * r['alone']:.3f}" if "alone" in r else "–",
            )
        )
    count = next(iter(found.values()))["rows"] if found else 0
    note = (
        f"{count:,} test rows in batches of like length. Alone: the share of the rows that get "
        "the same label alone and in a batch."
    ) * bool(found)
    columns = (
        "way",
        "level",
        "accuracy, %",
        "beside",
        "same label, %",
        "largest difference of logits",
        "alone as in a batch, %",
    )
    return Table(name, f"Answers, {subject}", columns, tuple(rows), note)


def _memory_table(records: Records, name: str, subject: str) -> Table:
    rows = [
        (
            _SERVED[r["served"]],
            str(r["sessions"]),
            str(r["levels"] if r["sessions"] else 0),
            f"{r['file_bytes'] / 1e6:.1f}",
            f"{r['resident_bytes'] / 1e6:.1f}",
        )
        for r in of_kind(records, "peer_memory")
    ]
    note = (
        "Each row is a fresh process with ONNX Runtime and without torch, after calls of eight "
        "rows at every level."
    )
    columns = ("served", "sessions", "levels", "files, MB", "resident, MB")
    return Table(name, f"Memory, {subject}", columns, tuple(rows), note)


def _machines_table(plan: Comparison, records: Records) -> Table:
    """What each processor gave that was met, of whatever weights: those of the last run there."""
    newest: dict[tuple[str, ...], dict[float, Record]] = {}
    for r in of_kind(records, "peer_latency"):
        if r["arm"] == "file-int8" and r["threads"] == 1 and r["level"] in _SUMMARISED:
            machine = r["machine"]
            named = (f"{machine['processor']} ({machine['capability']})", r["subject"], r["shape"])
            newest.setdefault(named, {})[r["level"]] = r
    rows = tuple(
        (
            *named,
            *(_times(at[level]["over"]["torch"]) for level in _SUMMARISED if level < 1.0),
            *(_times(at[level]["over"]["onnxruntime-int8"]) for level in _SUMMARISED),
        )
        for named, at in sorted(newest.items())
        if named[2] in (plan.shapes[0], plan.smallest) and set(at) == set(_SUMMARISED)
    )
    less = [f"{level:g} over torch" for level in _SUMMARISED if level < 1.0]
    int8 = [f"{level:g} over dense int8" for level in _SUMMARISED]
    return Table(
        "machines",
        "The int8 file on each processor that was met, one thread",
        ("processor", "data", "shape", *less, *int8),
        rows,
        "Weights, versions and our graph differ between rows: compare within a row.",
    )


def _left_out_table(records: Records) -> Table:
    rows = [
        (r["subject"], NAMED[r["arm"]].words if r["arm"] in NAMED else r["arm"], r["reason"])
        for r in of_kind(records, "peer_left_out")
    ]
    return Table("left-out", "Left out", ("subject", "way", "why"), tuple(rows))


def _in_order(arms: set[tuple[str, float]]) -> list[tuple[str, float]]:
    """As the table of ways has them, from the whole level down."""
    places = {peer.name: place for place, peer in enumerate(PEERS)}
    return sorted(arms, key=lambda arm: (places[arm[0]], -arm[1]))


def _times(ratio: Sequence[float]) -> str:
    return "{:.2f}x ({:.2f} – {:.2f})".format(*ratio)
