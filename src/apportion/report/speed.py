"""Records → tables of measured time, beside what multiply-accumulates allow."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from apportion.experiment import Experiment
from apportion.report.tables import (
    Records,
    Table,
    asked,
    main_method,
    mean_sd,
    percent,
    points_at,
    select,
    times,
)

_REMOVED = ("parameters", "head_parameters", "attention_macs", "layer_macs")
_CALLED = {"soft": "soft gates", "hard": "hard mask", "skip": "hard skip", "cut": "cut model"}


def latency_table(records: Records) -> Table:
    """Measured time of each arm, its speed-up, and what MACs allow."""
    found = [r for r in select(records, kind="latency") if "protocol" not in r]
    arms = dict.fromkeys((r.get("method"), r["form"], r["budget"]) for r in found)
    several = len({method for method, _, _ in arms}) > 1
    rows = []
    for method, form, budget in arms:
        of_arm = [
            r for r in found if (r.get("method"), r["form"], r["budget"]) == (method, form, budget)
        ]
        bound = statistics.mean(r["bound"] for r in of_arm)
        share = statistics.mean(r["speedup"] / r["bound"] for r in of_arm)
        low, high = min(r["low"] for r in of_arm), max(r["high"] for r in of_arm)
        cells = (
            form,
            asked(budget),
            mean_sd([r["median_ms"] for r in of_arm], 2),
            times(of_arm),
            f"{low:.2f} – {high:.2f}",
            f"{bound:.3f}x",
            f"{100 * share:.0f} %",
        )
        rows.append((str(method), *cells) if several else cells)
    note = ""
    if found:
        r = found[0]
        note = (
            f"Batch {r['batch']} x {r['length']}, {_runtime(r)}, "
            f"{r['repeats']} repeats with arms interleaved; {r['machine']['processor']}. "
            "Speed-up is the median of paired ratios, averaged over seeds; the interval is the "
            "widest of the seeds' 95 % intervals."
        )
    return Table(
        "latency",
        "Measured latency",
        ("method",) * several
        + ("model", "budget", "ms", "speed-up", "95 % interval", "bound by MACs", "share of bound"),
        tuple(rows),
        note,
    )


def protocol_tables(experiment: Experiment, records: Records) -> list[Table]:
    """Time of texts by the paper's protocol, padded and grouped by length; and one by one."""
    return [
        _protocol_table("protocol", "Measured latency", ("padded", "grouped"), experiment, records),
        _protocol_table(
            "single", "Measured latency, one row a call", ("single", "short"), experiment, records
        ),
    ]


def _protocol_table(
    name: str, title: str, protocols: Sequence[str], experiment: Experiment, records: Records
) -> Table:
    found = [r for r in select(records, kind="latency") if r.get("protocol") in protocols]
    protocols = [name for name in protocols if any(r["protocol"] == name for r in found)]
    rows = []
    for method, form, budget in dict.fromkeys((r["method"], r["form"], r["budget"]) for r in found):
        if form == "dense" and method != main_method(experiment):
            continue  # every method has the same dense model in its own turn
        arm = {"method": method, "form": form, "budget": budget}
        cells: list[str] = []
        for protocol in protocols:
            of_arm = select(records, kind="latency", protocol=protocol, **arm)
            cells += _timed(of_arm) if of_arm else ["–"] * 4
        points = points_at(records, "dense" if form == "dense" else method, form, budget)
        cost = mean_sd([p["cost"] for p in points], 3)
        called = "dense" if form == "dense" else method
        shown = "all open" if form == "dense" else _CALLED[form]
        rows.append((called, shown, asked(budget), cost, percent(points), *cells))
    note = ""
    if found:
        r = found[0]
        note = (
            f"{r['rows']:,} test rows, encoded before, batch {r['batch']}, "
            f"{_runtime(r)}, {r['repeats']} repeats with arms taking turns "
            f"batch by batch; {r['machine']['processor']}. Milliseconds are medians of a seed, "
            "averaged over seeds; a speed-up is the median of paired ratios of a seed, averaged. "
            f"Padded, and one by one: every row has {r['length']} tokens, the paper's protocol. "
            "Grouped: rows of like length share a batch, as people would run it."
        )
    if "short" in protocols:
        short = next(r for r in found if r["protocol"] == "short")
        note += f" Short: their first {short['length']} tokens."
    columns = ["method", "evaluated", "budget", "cost", "accuracy"]
    for protocol in protocols:
        columns += [f"{protocol}: ms", "speed-up", "bound by MACs", "share of bound"]
    return Table(name, title, tuple(columns), tuple(rows), note)


def compute_table(records: Records) -> Table:
    """What a cut takes away, in parameters and multiply-accumulates."""
    found = [r for r in select(records, kind="latency", form="cut") if "removed" in r]
    found = [r for r in found if r.get("protocol", "padded") == "padded"]
    rows = []
    for method, budget in dict.fromkeys((r["method"], r["budget"]) for r in found):
        gone = [r["removed"] for r in found if (r["method"], r["budget"]) == (method, budget)]
        cells = [mean_sd([100 * g[name] for g in gone], 1) for name in _REMOVED]
        rows.append((method, asked(budget), *cells))
    length = found[0]["length"] if found else 0
    return Table(
        "compute",
        "What a cut takes away",
        (
            "method",
            "budget",
            "of all parameters, %",
            "of head parameters, %",
            "of attention MACs, %",
            "of layer MACs, %",
        ),
        tuple(rows),
        f"Multiply-accumulates at {length} tokens.",
    )


def throughput_table(records: Records) -> Table:
    """Rows a second of predictions from text to label, beside those of the bare model."""
    found = select(records, kind="throughput")
    rows = []
    for budget in sorted({r["budget"] for r in found}):
        of_budget = [r for r in found if r["budget"] == budget]
        rows.append(
            (
                asked(budget),
                mean_sd([r["bare"] for r in of_budget], 0),
                mean_sd([r["predict"] for r in of_budget], 0),
                mean_sd([100 * r["share"] for r in of_budget], 1),
            )
        )
    return Table(
        "throughput",
        "Predictions a second",
        ("budget", "bare model, rows/s", "predict, rows/s", "share, %"),
        tuple(rows),
        "The model has one thread. Bare, it takes batches that were encoded before; predict reads "
        "CSV, encodes in a thread of its own a chunk ahead, calls the model on the same batches "
        "and writes CSV.",
    )


def _runtime(record: Mapping[str, Any]) -> str:
    """What computed: the threads of a processor, or another device."""
    where = record.get("device_name", f"{record['threads']} thread")
    return f"{where}, {record['runtime']}"


def _timed(of_arm: Sequence[Mapping[str, Any]]) -> list[str]:
    bound = statistics.mean(r["bound"] for r in of_arm)
    share = statistics.mean(r["speedup"] / r["bound"] for r in of_arm)
    return [
        mean_sd([r["median_ms"] for r in of_arm], 0),
        times(of_arm),
        f"{bound:.3f}x",
        f"{100 * share:.1f} %",
    ]
