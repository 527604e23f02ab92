"""Records → tables of measured time, beside an estimate by multiply-accumulates."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from apportion.serving.bench.switching import SWITCHES
from apportion.study.experiment import Experiment
from apportion.study.report.query import (
    BY_MACS,
    Records,
    asked,
    interval,
    main_method,
    mean_sd,
    of_medians,
    over_fused,
    percent,
    points_at,
    processors,
    select,
    times,
    timings,
)
from apportion.study.report.table import Table

_REMOVED = {
    "parameters": "all parameters",
    "head_parameters": "head parameters",
    "attention_macs": "attention MACs",
    "layer_macs": "layer MACs",
}
_CALLED = {
    "given": "all open, all of the last layer",
    "fused": "all open, sums fused",
    "soft": "soft gates",
    "hard": "hard mask",
    "skip": "hard skip",
    "cut": "cut model",
}


def latency_table(records: Records) -> Table:
    """Measured time of each arm, its speed-up, and what MACs let expect."""
    found = [r for r in select(records, kind="latency") if "protocol" not in r]
    arms = dict.fromkeys((r.get("method"), r["form"], r["budget"]) for r in found)
    several = len({method for method, _, _ in arms}) > 1
    fused = any("over_fused" in r for r in found)
    rows = []
    for method, form, budget in arms:
        of_arm = [
            r for r in found if (r.get("method"), r["form"], r["budget"]) == (method, form, budget)
        ]
        cells = (form, asked(budget), *_timed(of_arm, found, fused, digits=2, share_digits=0))
        rows.append((str(method), *cells) if several else cells)
    note = ""
    if found:
        r = found[0]
        note = (
            f"Batch {r['batch']} x {r['length']}, {_runtime(r)}, "
            f"{r['repeats']} repeats with arms interleaved; {processors(found)}. "
            "Speed-up is the median of paired ratios, averaged over seeds; the interval is the "
            "widest of the seeds' 95 % intervals; of medians is the ratio of the arms' medians. "
            f"{BY_MACS}"
        ) + _OVER_FUSED * fused
    return Table(
        "latency",
        "Measured latency",
        ("method",) * several
        + ("model", "budget", "ms", "speed-up", "95 % interval", "of medians")
        + ("over fused",) * fused
        + ("by MACs", "share of that"),
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
    fused = any("over_fused" in r for r in found)
    rows = []
    for method, form, budget in dict.fromkeys((r["method"], r["form"], r["budget"]) for r in found):
        whole = form in ("dense", "given", "fused")
        if whole and method != main_method(experiment):
            continue  # every method has the same dense model in its own turn
        arm = {"method": method, "form": form, "budget": budget}
        cells: list[str] = []
        for protocol in protocols:
            of_arm = select(records, kind="latency", protocol=protocol, **arm)
            cells += _timed(of_arm, found, fused) if of_arm else ["–"] * (6 + fused)
        called = "dense" if whole else method
        points = points_at(records, called, "dense" if whole else form, budget)
        cost = mean_sd([p["cost"] for p in points], 3)
        shown = "all open" if form == "dense" else _CALLED[form]
        rows.append((called, shown, asked(budget), cost, percent(points), *cells))
    note = ""
    if found:
        r = found[0]
        note = (
            f"{r['rows']:,} test rows, encoded before, batch {r['batch']}, "
            f"{_runtime(r)}, {r['repeats']} repeats with arms taking turns "
            f"batch by batch; {processors(found)}. Milliseconds are medians of a seed, "
            "averaged over seeds; a speed-up is the median of paired ratios of a seed, averaged, "
            "with the widest of the seeds' 95 % intervals; of medians is the ratio of medians. "
            f"{BY_MACS} "
            f"Padded, and one by one: every row has {r['length']} tokens, the paper's protocol. "
            "Grouped: rows of like length share a batch, as people would run it."
        )
    if "short" in protocols:
        short = next(r for r in found if r["protocol"] == "short")
        note += f" Short: their first {short['length']} tokens."
    note += _OVER_FUSED * fused
    columns = ["method", "evaluated", "budget", "cost", "accuracy"]
    for protocol in protocols:
        columns += [f"{protocol}: ms", "speed-up", "95 % interval", "of medians"]
        columns += ["over fused"] * fused + ["by MACs", "share of that"]
    return Table(name, title, tuple(columns), tuple(rows), note)


def compute_table(records: Records) -> Table:
    """What a cut takes away, in parameters and multiply-accumulates."""
    found = [r for r in timings(records, form="cut") if "removed" in r]
    rows = []
    for method, budget in dict.fromkeys((r["method"], r["budget"]) for r in found):
        removed = [r["removed"] for r in found if (r["method"], r["budget"]) == (method, budget)]
        shares = {
            f"of {words}, %": mean_sd([100 * one[name] for one in removed], 1)
            for name, words in _REMOVED.items()
        }
        rows.append({"method": method, "budget": asked(budget), **shares})
    length = found[0]["length"] if found else 0
    note = f"Multiply-accumulates at {length} tokens."
    return Table.of_rows("compute", "What a cut takes away", rows=rows, note=note)


def throughput_table(records: Records) -> Table:
    """Rows a second of predictions from text to label, beside those of the bare model."""
    found = select(records, kind="throughput")
    rows = []
    for budget in sorted({r["budget"] for r in found}):
        of_budget = [r for r in found if r["budget"] == budget]
        rows.append(
            {
                "budget": asked(budget),
                "bare model, rows/s": mean_sd([r["bare"] for r in of_budget], 0),
                "predict, rows/s": mean_sd([r["predict"] for r in of_budget], 0),
                "share, %": mean_sd([100 * r["share"] for r in of_budget], 1),
            }
        )
    note = (
        "The model has one thread. Bare, it takes batches that were encoded before; predict reads "
        "CSV, encodes in a thread of its own a chunk ahead, calls the model on the same batches "
        "and writes CSV."
    )
    return Table.of_rows("throughput", "Predictions a second", rows=rows, note=note)


def switching_table(records: Records) -> Table:
    """What it takes to change the budget of a model that is running."""
    rows = [
        {
            "method": r["method"],
            "seed": str(r["seed"]),
            "budgets": str(len(r["budgets"])),
            "switch, µs": f"{r['switch_us']:.2f}",
            "slowest, µs": f"{r['slowest_us']:.1f}",
            "first time, ms": f"{r['first_ms']:.1f}",
            "bytes of weights beside the dense ones": f"{r['extra_bytes']:,}",
            "bytes of Python objects": f"{r['object_bytes']:,}",
            "both, of the dense model, %": (
                f"{100 * (r['extra_bytes'] + r['object_bytes']) / r['whole_bytes']:.1f}"
            ),
        }
        for r in select(records, kind="switching")
    ]
    note = (
        f"A switch is the median of {SWITCHES:,} between budgets that were asked for before; the "
        "first time that a budget is asked for, its modules are made, which hold views of the "
        "weights."
    )
    return Table.of_rows("switching", "Changing the budget", rows=rows, note=note)


def _runtime(record: Mapping[str, Any]) -> str:
    """What computed: the threads of a processor, or another device."""
    where = record.get("device_name", f"{record['threads']} thread")
    return f"{where}, {record['runtime']}"


_OVER_FUSED = (
    " Over fused: the same against the dense model with fused residual sums, which hard skipping "
    "has too, with its interval."
)


def _timed(
    of_arm: Records, found: Records, fused: bool, digits: int = 0, share_digits: int = 1
) -> list[str]:
    """The cells of an arm: milliseconds, speed-ups, the speed-up by MACs and the share of it."""
    by_macs = statistics.mean(r["bound"] for r in of_arm)
    share = statistics.mean(r["speedup"] / r["bound"] for r in of_arm)
    return [
        mean_sd([r["median_ms"] for r in of_arm], digits),
        times(of_arm),
        interval(of_arm),
        of_medians(of_arm, found),
        *([over_fused(of_arm)] if fused else []),
        f"{by_macs:.3f}x",
        f"{100 * share:.{share_digits}f} %",
    ]
