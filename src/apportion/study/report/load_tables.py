"""Records of servers under load → tables: overload, accuracy under load, Ray Serve."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from apportion.study.report.claim_tables import interval_of_mean
from apportion.study.report.grouping import (
    Record,
    grouped,
    newest,
    percent,
    table_of,
    with_interval,
)
from apportion.study.report.table import Table

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
_ON_RAY = (
    "The same arrivals in turns; of the server alone: a turn's attainment over that of the server "
    "alone, median with its 95 % interval. Ray's processes run all the while, for both."
)


def load_tables(records: Sequence[Record]) -> tuple[Table, Table, Table]:
    """What becomes of requests at multiples of the smallest budget's rate, and of the whole's.

    Of the whole's, those of one tier alone show what answers are worth, and those of all tiers
    what another server makes of the same arrivals.
    """
    small = [one for one in records if one["of"] == "small"]
    one_tier = [one for one in records if one["of"] == "whole" and not one["mixed"]]
    mixed = [one for one in records if one["of"] == "whole" and one["mixed"]]
    return (
        table_of("overload", "Overload", small, _overload_rows, _OVERLOAD),
        table_of("accuracy", "Accuracy under load", one_tier, _accuracy_rows, _ACCURACY),
        table_of("ray-serve", "Ray Serve", mixed, _on_ray_rows, _ON_RAY),
    )


def _turns(records: Sequence[Record]) -> list[Record]:
    found = newest(records, "subject", "load", "arm", "turn")
    return [one for one in found if not one["results"]["void"]]


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
                "in time": with_interval([one["attainment"] for one in found], percent),
                "refused": str(sum(one["refused"] for one in found)),
                "lost": str(sum(one["lost"] + one["failed"] + one["twice"] for one in found)),
                "violations, static-full over this": with_interval(ratios, lambda v: f"{v:.1f}x")
                if ratios and arm != "static-full"
                else "–",
                "right": percent(right / max(sum(one["answered_rows"] for one in found), 1)),
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
                    "in time": with_interval(
                        [one["results"]["attainment"] for one in turns], percent
                    ),
                    "right": percent(means[arm]),
                    "ladder's less this, points": "–" if arm == "ladder" else points,
                    "span": span,
                }
            )
    return rows


def _on_ray_rows(records: Sequence[Record]) -> list[dict[str, str]]:
    rows = []
    for (subject, load, arm), own in grouped(_turns(records), "subject", "load", "arm").items():
        alone = {
            one["turn"]: one["results"]["attainment"]
            for one in _turns(records)
            if (one["subject"], one["load"], one["arm"]) == (subject, load, "ladder")
        }
        shares = [
            one["results"]["attainment"] / alone[one["turn"]]
            for one in own
            if alone.get(one["turn"])
        ]
        found = [one["results"] for one in own]
        rows.append(
            {
                "model": subject,
                "load": f"{load:g}x the whole budget's",
                "server": arm,
                "turns": str(len(own)),
                "requests": f"{sum(one['sent'] for one in found):,}",
                "in time": with_interval([one["attainment"] for one in found], percent),
                "of the server alone": with_interval(shares, lambda v: f"{v:.3f}"),
                "refused": str(sum(one["refused"] for one in found)),
                "lost": str(sum(one["lost"] + one["failed"] + one["twice"] for one in found)),
            }
        )
    return rows
