"""Records of a server → tables: load, policies, overhead, targets, chaos, ends."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from apportion.study.report.grouping import (
    Record,
    grouped,
    newest,
    percent,
    table_of,
    with_interval,
)
from apportion.study.report.load_tables import load_tables
from apportion.study.report.query import Records
from apportion.study.report.table import Table

STUDY = "serving"
SERVED = ("load", "policies", "overhead", "target", "chaos", "drain", "abandoned", "fuzz")
_TARGETS_TRIED = 8
_CLIENT_MS = 5.0  # a client that was later than that at its 99th percentile measured itself


def serving_tables(records: Records) -> list[Table]:
    """Every table; those that have no records yet are empty, and say so."""
    of = {kind: [one for one in records if one.get("kind") == kind] for kind in SERVED}
    overload, accuracy, on_ray = load_tables(of["load"])
    return [
        overload,
        accuracy,
        table_of("policies", "Policies", of["policies"], _policy_rows, _POLICIES),
        table_of("overhead", "Overhead", of["overhead"], _overhead_rows, _OVERHEAD),
        table_of("targets", "Targets in milliseconds", of["target"], _target_rows, _TARGETS),
        table_of("chaos", "Chaos", of["chaos"], _chaos_rows, _CHAOS),
        table_of("drain", "Ends", of["drain"], _drain_rows, _DRAIN),
        table_of("abandoned", "Abandoned work", of["abandoned"], _abandoned_rows, _ABANDONED),
        on_ray,
        table_of("fuzz", "Spoilt requests", of["fuzz"], _fuzz_rows, _FUZZ),
    ]


_POLICIES = (
    "Worth: of answers in time, as a share of what one who knows the future could get on short "
    "traces, and of all rows at the whole budget on long ones. As good: share of the traces on "
    "which the ladder gets at least what SlackFit gets."
)
_OVERHEAD = (
    "A lone request less the bare call, and saturated rows a second over those of the bare loop on "
    "batches that were encoded before: medians over turns, in brackets the 95 % interval."
)
_TARGETS = "Of all targets of a length: how many kept their 95th percentile, and the worst of them."
_CHAOS = "Left: clients that hung up. Megabytes: resident size after each half."
_DRAIN = "Busy: runnable processes per core before the server started."
_ABANDONED = (
    "Three steps: all clients wait, half of them hang up within 200 ms, all wait again. Answered: "
    "share of the requests that somebody waited for, by step, the least of the turns. Wasted: of "
    "the model's time in the second step, what went to rows that nobody waited for any more, "
    "median of the turns with its 95 % interval."
)
_FUZZ = "Wrong: 500s, tracebacks, errors of no shape, no answer."


def _policy_rows(records: Sequence[Record]) -> list[dict[str, str]]:
    return [
        {
            "times by": one["subject"],
            "traces": f"{one['traces']:,} of {one['rows']} rows",
            "policy": policy,
            "worth": percent(one["worth"][policy]),
            "in time": percent(one["in_time"][policy]),
            "as good in worth": percent(one["worth_as_slackfit"]) if own else "–",
            "in rows in time": percent(one["in_time_as_slackfit"]) if own else "–",
            "in the dearest tier": percent(one["dearest_as_slackfit"]) if own else "–",
        }
        for one in newest(records, "subject", "part")
        for policy in one["worth"]
        for own in [policy == "ladder"]
    ]


def _overhead_rows(records: Sequence[Record]) -> list[dict[str, str]]:
    return [
        {
            "model": one["subject"],
            "budget": f"{one['budget']:g}",
            "server": f"{one['arm']} {one['version']}",
            "turns": str(one["turns"]),
            "lone request, ms": f"{one['alone_ms']:.2f}",
            "over the bare call, ms": f"{one['over_ms']:.2f} "
            f"({one['low_ms']:.2f} – {one['high_ms']:.2f})",
            "rows a second": f"{one['rows_per_second']:.1f}",
            "share of the bare loop's": f"{one['share']:.3f} "
            f"({one['low']:.3f} – {one['high']:.3f})",
        }
        for one in newest(records, "subject", "budget", "arm")
    ]


def _target_rows(records: Sequence[Record]) -> list[dict[str, str]]:
    # Eight targets of a length and a load are tried together; tried again, their values differ.
    tried = grouped(records, "subject", "tokens", "load").values()
    found = [one for own in tried for one in own[-_TARGETS_TRIED:]]
    found = [one for one in found if one["client_p99_ms"] <= _CLIENT_MS]
    return [
        {
            "model": subject,
            "tokens, at most": str(tokens),
            "load": f"{load:g}",
            "targets, ms": f"{min(one['target_ms'] for one in own):.1f} – "
            f"{max(one['target_ms'] for one in own):.1f}",
            "kept by 95 %": f"{sum(over <= 1.0 for over in _p95_over(own))} of {len(own)}",
            "worst p95 over its target": f"{max(_p95_over(own)):.2f}",
            "forecast off by": _off(own),
            "requests": str(sum(one["requests"] for one in own)),
        }
        for (subject, tokens, load), own in grouped(found, "subject", "tokens", "load").items()
    ]


def _off(records: Sequence[Record]) -> str:
    off = [one["forecast_off"] for one in records if one.get("forecast_off") is not None]
    return percent(statistics.median(off)) if off else "–"


def _p95_over(records: Sequence[Record]) -> list[float]:
    return [one["p95_ms"] / one["target_ms"] for one in records]


def _chaos_rows(records: Sequence[Record]) -> list[dict[str, str]]:
    return [
        {
            "model": one["subject"],
            "rows": f"{one['rows']:,}",
            "left": f"{one['left']} of {one['requests']}",
            "deaths": str(one["deaths"]),
            "swaps": str(one["swaps"]),
            "refused": str(one["refused"]),
            "lost": str(one["lost"]),
            "failed": str(one["failed"]),
            "twice": str(one["twice"]),
            "wrong": str(one["wrong"]),
            "under way at SIGTERM": str(one["ending"]),
            "MB": f"{one['first_mb']:.0f}, {one['second_mb']:.0f}",
            "second over first": f"{one['second_mb'] / one['first_mb']:.3f}",
        }
        for one in records
    ]


def _drain_rows(records: Sequence[Record]) -> list[dict[str, str]]:
    rows = []
    for (subject,), own in grouped(newest(records, "subject", "turn"), "subject").items():
        whole = [one for one in own if one["answered"] == one["rows"]]
        rows.append(
            {
                "model": subject,
                "ends": str(len(own)),
                "queued, over the grace": f"{min(x['queued_s'] / x['grace_s'] for x in own):.1f} – "
                f"{max(x['queued_s'] / x['grace_s'] for x in own):.1f}",
                "rows": f"{sum(one['rows'] for one in own):,}",
                "answered": f"{sum(one['answered'] for one in own):,}",
                "ends with all answered": str(len(whole)),
                "last answer, s": f"{max(one['last_s'] for one in own):.2f}",
                "not ready after, ms": f"{max(one['ready_ms'] for one in own):.0f}",
                "mean budget": f"{statistics.mean(one['mean_budget'] for one in own):.3f}",
                "busy": f"{statistics.mean(one['busy'] for one in own):.1f}",
            }
        )
    return rows


def _abandoned_rows(records: Sequence[Record]) -> list[dict[str, str]]:
    rows = []
    for (subject,), own in grouped(newest(records, "subject", "turn"), "subject").items():
        least = [min(one["answered"][step] for one in own) for step in range(3)]
        rows.append(
            {
                "model": subject,
                "turns": str(len(own)),
                "left": f"{sum(x['left'] for x in own):,} of {sum(x['requests'] for x in own):,}",
                "answered": " · ".join(percent(share) for share in least),
                "wasted": with_interval([x["wasted_s"] / x["spent_s"] for x in own], percent),
            }
        )
    return rows


def _fuzz_rows(records: Sequence[Record]) -> list[dict[str, str]]:
    found = newest(records, "seed")
    statuses: dict[str, int] = {}
    for one in found:
        for status, count in one["statuses"].items():
            statuses[status] = statuses.get(status, 0) + count
    by_status = " · ".join(f"{status}: {count:,}" for status, count in sorted(statuses.items()))
    return [
        {
            "requests": f"{sum(one['requests'] for one in found):,}",
            "by status": by_status,
            "wrong": str(sum(one["wrong"] for one in found)),
        }
    ]
