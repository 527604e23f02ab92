"""Records of a server → tables: overload, accuracy under load, overhead, targets, chaos."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from apportion.serving.bench.timing import median_interval
from apportion.study.report.claim_tables import interval_of_mean
from apportion.study.report.query import Records, processors
from apportion.study.report.table import Table

STUDY = "serving"
Record = Mapping[str, Any]
_TARGETS_TRIED = 8
_CLIENT_MS = 5.0  # a client that was later than that at its 99th percentile measured itself


def serving_tables(records: Records) -> list[Table]:
    """Every table; those that have no records yet are empty, and say so."""
    of = {
        kind: [one for one in records if one.get("kind") == kind]
        for kind in ("load", "policies", "overhead", "target", "chaos", "drain", "fuzz")
    }
    small = [one for one in of["load"] if one["of"] == "small"]
    whole = [one for one in of["load"] if one["of"] == "whole" and not one["mixed"]]
    return [
        table_of("overload", "Overload", small, _overload_rows, _OVERLOAD),
        table_of("accuracy", "Accuracy under load", whole, _accuracy_rows, _ACCURACY),
        table_of("policies", "Policies", of["policies"], _policy_rows, _POLICIES),
        table_of("overhead", "Overhead", of["overhead"], _overhead_rows, _OVERHEAD),
        table_of("targets", "Targets in milliseconds", of["target"], _target_rows, _TARGETS),
        table_of("chaos", "Chaos", of["chaos"], _chaos_rows, _CHAOS),
        table_of("drain", "Ends", of["drain"], _drain_rows, _DRAIN),
        table_of("fuzz", "Spoilt requests", of["fuzz"], _fuzz_rows, _FUZZ),
    ]


_OVERLOAD = (
    "Medians over turns, in brackets the 95 % interval. Violations are requests that were not "
    "answered in time; over static-full: static-full's over this arm's, on the same arrivals. "
    "Turns whose client was late are left out."
)
_ACCURACY = (
    "Accuracy is of answered rows; the difference is the ladder's less this arm's on the same "
    "rows, mean over turns with its 95 % interval. Span: the share of what lies between the "
    "smallest and the whole budget."
)
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
_FUZZ = "Wrong: 500s, tracebacks, errors of no shape, no answer."


def table_of(
    name: str,
    title: str,
    records: Sequence[Record],
    rows_of: Callable[[Sequence[Record]], list[dict[str, str]]],
    note: str,
) -> Table:
    """A table of records with what it was measured on; without records it says so."""
    rows = rows_of(records) if records else []
    if not rows:
        return Table(name, title, ("",), (("no record yet",),))
    if traced := [one for one in records if "machine" in one]:
        note += f" Measured on {processors(traced)}."
    return Table.of_rows(name, title, rows=rows, note=note)


def newest(records: Sequence[Record], *names: str) -> list[Record]:
    """Of records that say the same, the newest."""
    return list({tuple(str(one[name]) for name in names): one for one in records}.values())


def grouped(records: Sequence[Record], *names: str) -> dict[tuple[Any, ...], list[Record]]:
    """Records that say the same, together."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for one in records:
        groups.setdefault(tuple(one[name] for name in names), []).append(one)
    return groups


def _turns(records: Sequence[Record]) -> list[Record]:
    found = newest(records, "subject", "load", "arm", "turn")
    return [one for one in found if not one["results"]["void"]]


def _with_interval(values: Sequence[float], shown: Callable[[float], str]) -> str:
    middle = shown(statistics.median(values))
    if len(values) < 3:
        return middle
    low, high = median_interval(list(values))
    return f"{middle} ({shown(low)} – {shown(high)})"


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def _violations(one: Record) -> int:
    return int(one["results"]["sent"] - one["results"]["met"])


def _overload_rows(records: Sequence[Record]) -> list[dict[str, str]]:
    rows = []
    for (subject, load, arm), turns in grouped(_turns(records), "subject", "load", "arm").items():
        found = [one["results"] for one in turns]
        base = {
            one["turn"]: _violations(one)
            for one in _turns(records)
            if (one["subject"], one["load"], one["arm"]) == (subject, load, "static-full")
        }
        ratios = [
            base[one["turn"]] / max(_violations(one), 1) for one in turns if one["turn"] in base
        ]
        right = sum(one["right_rows"] for one in found)
        rows.append(
            {
                "model": subject,
                "load": f"{100 * load:g} % of the smallest budget's",
                "arm": arm,
                "turns": str(len(turns)),
                "requests": f"{sum(one['sent'] for one in found):,}",
                "in time": _with_interval([one["attainment"] for one in found], _percent),
                "refused": str(sum(one["refused"] for one in found)),
                "lost": str(sum(one["lost"] + one["failed"] + one["twice"] for one in found)),
                "violations, static-full over this": _with_interval(ratios, lambda v: f"{v:.1f}x")
                if ratios and arm != "static-full"
                else "–",
                "right": _percent(right / max(sum(one["answered_rows"] for one in found), 1)),
            }
        )
    return sorted(rows, key=lambda row: (row["model"], row["load"], row["arm"] != "ladder"))


def _right(one: Record) -> float:
    return float(one["results"]["right_rows"] / max(one["results"]["answered_rows"], 1))


def _accuracy_rows(records: Sequence[Record]) -> list[dict[str, str]]:
    rows = []
    for (subject, load), own in grouped(_turns(records), "subject", "load").items():
        arms = grouped(own, "arm")
        ladder = {one["turn"]: _right(one) for one in arms.get(("ladder",), [])}
        means = {arm: statistics.mean(map(_right, turns)) for (arm,), turns in arms.items()}
        static = sorted(a for a in means if a.startswith("static-"))
        for (arm,), turns in sorted(arms.items(), key=lambda pair: pair[0][0]):
            pairs = [ladder[one["turn"]] - _right(one) for one in turns if one["turn"] in ladder]
            ends = interval_of_mean(pairs)
            points = f"{100 * statistics.mean(pairs):+.2f}" if pairs else "–"
            if ends is not None:
                points += f" ({100 * ends[0]:+.2f} – {100 * ends[1]:+.2f})"
            span = "–"
            if len(static) > 1 and means[static[-1]] != means[static[0]]:
                share = (means[arm] - means[static[0]]) / (means[static[-1]] - means[static[0]])
                span = f"{100 * share:.0f} %"
            rows.append(
                {
                    "model": subject,
                    "load": f"{load:g}x the whole budget's",
                    "arm": arm,
                    "turns": str(len(turns)),
                    "in time": _with_interval(
                        [one["results"]["attainment"] for one in turns], _percent
                    ),
                    "right": _percent(means[arm]),
                    "ladder's less this, points": "–" if arm == "ladder" else points,
                    "span": span,
                }
            )
    return rows


def _policy_rows(records: Sequence[Record]) -> list[dict[str, str]]:
    return [
        {
            "times by": one["subject"],
            "traces": f"{one['traces']:,} of {one['rows']} rows",
            "policy": policy,
            "worth": _percent(one["worth"][policy]),
            "in time": _percent(one["in_time"][policy]),
            "as good in worth": _percent(one["worth_as_slackfit"]) if own else "–",
            "in rows in time": _percent(one["in_time_as_slackfit"]) if own else "–",
            "in the dearest tier": _percent(one["dearest_as_slackfit"]) if own else "–",
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
            "requests": str(sum(one["requests"] for one in own)),
        }
        for (subject, tokens, load), own in grouped(found, "subject", "tokens", "load").items()
    ]


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
