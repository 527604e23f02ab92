"""Records of promises → tables: certificates, forecasts in milliseconds, jobs on Ray."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from apportion.serving.bench.calibration import summarise
from apportion.study.report.grouping import Record, grouped, newest, table_of
from apportion.study.report.query import Records
from apportion.study.report.table import Table

_METHODS = {"cascade": "budgets of one checkpoint", "depth": "first layers, early exit"}
_CERTIFIED = (
    "Means over draws of the rows; speed is of the cascade over the whole model of the same "
    "runtime from text to label, batches of 32, one thread, in brackets the lowest and the highest "
    "of the draws. It was timed on 128 of the rows that neither tuned nor tested; over torch eager "
    "in the first draw alone. Truly differ: on all of those rows. Seconds to certify: of the model "
    "on one thread, for 1,000 rows that tune and 2,000 that test, from the time of those 128."
)
_VALIDITY = (
    "The answers to a data set's test texts are taken for the population, so that the truth is "
    "known. Broken: share of the promises that the population does not keep, each from rows of its "
    "own drawn with replacement. Files: of 3,000 rows, drawn from the population and certified by "
    "their own rows. Boldest: what differs at the end of the path that is tested."
)
_FILES = (
    "Files are drawn from a data set's test texts without replacement; the truth is the whole "
    "model's answers. Ended early: rows that ended below the whole budget."
)
_FORECASTS = (
    "Eight targets for each of three lengths and three counts of rows, none of them in the table "
    "that was calibrated. Error: of the forecast, over the median call."
)
_RAY = "Rows a second from the start of a job to its file; ratios are medians of paired ones."
_KILLS = "Same: the file of the undisturbed job, row by row."


def promise_tables(records: Records) -> dict[str, list[Table]]:
    """Every table, by the study that its place names; those without records say so."""

    def of(kind: str) -> list[Record]:
        return [one for one in records if one.get("kind") == kind]

    return {
        "certificates": [
            table_of("speed", "Certified", of("certified"), _certified_rows, _CERTIFIED),
            table_of("validity", "Promises kept", of("validity"), _validity_rows, _VALIDITY),
            table_of("files", "Files by the command", of("file_promises"), _file_rows, _FILES),
        ],
        "milliseconds": [
            table_of("check", "Forecasts", of("forecast"), _forecast_rows, _FORECASTS)
        ],
        "ray": [
            table_of("throughput", "Batch jobs", of("ray_throughput"), _throughput_rows, _RAY),
            table_of("kills", "Killed jobs", of("ray_kill"), _kill_rows, _KILLS),
        ],
    }


def _certified_rows(records: Sequence[Record]) -> list[dict[str, str]]:
    named = ("data", "method", "precision", "disagree_at_most")
    rows = []
    for key, draws in sorted(grouped(newest(records, *named, "data_seed"), *named).items()):
        data, method, precision, epsilon = key
        speeds = [one["speed"] for one in draws]
        eager = [one["over_eager"] for one in draws if "over_eager" in one]
        differ = sum(one["test_disagreements"] for one in draws)
        rows.append(
            {
                "data": str(data),
                "method": _METHODS[method],
                "run by": "int8 file" if precision == "int8" else "torch views",
                "promised": f"≤ {100 * epsilon:g} %",
                "draws": str(len(draws)),
                "end at the smallest budget": f"{_mean(one['ends'][0] for one in draws):.0%}",
                "mean cost": f"{_mean(one['cost'] for one in draws):.3f}",
                "speed": f"{statistics.mean(speeds):.2f}x ({min(speeds):.2f} – {max(speeds):.2f})",
                "over torch eager": f"{statistics.mean(eager):.2f}x" if eager else "–",
                "truly differ": f"{differ / sum(one['test_rows'] for one in draws):.2%}",
                "draws above the promise": str(
                    sum(o["test_disagreements"] > epsilon * o["test_rows"] for o in draws)
                ),
                "seconds to certify": f"{_mean(one['seconds'] for one in draws):.0f}",
            }
        )
    return rows


def _validity_rows(records: Sequence[Record]) -> list[dict[str, str]]:
    return [
        {
            "data": str(one["data"]),
            "method": _METHODS[one["method"]],
            "run by": "int8 file" if one["run_by"] == "int8" else "torch views",
            "promised": f"≤ {100 * one['disagree_at_most']:g} %",
            "rows": f"{one['population']:,}",
            "boldest": f"{one['boldest']:.1%}",
            "draws": str(one["draws"]),
            "broken at 95 %": f"{one['broken']:.1%}",
            "broken at 50 %": f"{one['broken_at_half']:.1%}",
            "files broken": f"{one['files_broken']:.1%}",
            "files certified": f"{one['files_certified']:.0%}",
        }
        for one in newest(records, "data", "method", "run_by", "disagree_at_most")
    ]


def _file_rows(records: Sequence[Record]) -> list[dict[str, str]]:
    return [
        {
            "data": str(one["data"]),
            "run by": "int8 file" if one["run_by"] == "int8" else str(one["run_by"]),
            "promised": f"≤ {100 * one['disagree_at_most']:g} %",
            "files": f"{one['files']} of {one['file_rows']:,} rows",
            "certified": str(one["certified"]),
            "kept": f"{one['kept']} of {one['files']}",
            "most that differ": f"{one['most']:.2%}",
            "ended early": f"{one['early']:.0%}",
        }
        for one in newest(records, "data", "run_by", "disagree_at_most")
    ]


def _mean(values: Iterable[float]) -> float:
    return statistics.mean(values)


def _forecast_rows(records: Sequence[Record]) -> list[dict[str, str]]:
    named = ("stage", "precision", "threads", "target_ms", "rows", "length")
    rows = []
    for (_, precision, threads), own in grouped(newest(records, *named), *named[:3]).items():
        found = summarise(own)
        rows.append(
            {
                "run by": str(own[0]["runtime"]),
                "precision": str(precision),
                "threads": str(threads),
                "targets": str(len(own)),
                "error, median": f"{found['median_error']:.1%}",
                "error, 95th percentile": f"{found['p95_error']:.1%}",
                "margin": f"{own[0]['margin']:.1%}",
                "calls within their target": f"{found['calls_within']:.1%}",
                "targets kept by 95 % of the calls": f"{found['p95_within']:.1%}",
            }
        )
    return rows


def _throughput_rows(records: Sequence[Record]) -> list[dict[str, str]]:
    return [
        {
            "model": str(one["subject"]),
            "budget": f"{one['budget']:g}",
            "rows": f"{one['rows']:,}",
            "way": str(one["arm"]),
            "rows a second": f"{one['rows_per_second']:,.0f}",
            "two actors over this": f"{one['two_actors_over_this']:.2f}x "
            f"({one['low']:.2f} – {one['high']:.2f})",
            "same labels": "yes" if one["same_labels"] else "no",
        }
        for one in newest(records, "subject", "budget", "arm")
    ]


def _kill_rows(records: Sequence[Record]) -> list[dict[str, str]]:
    found = grouped(newest(records, "subject", "seed", "round"), "subject", "victim")
    return [
        {
            "model": str(subject),
            "killed": str(victim),
            "jobs": str(len(own)),
            "under way when it was to be killed": str(sum(one["killed"] for one in own)),
            "rows of each": f"{max(one['rows'] for one in own):,}",
            "same": f"{sum(one['same'] for one in own)} of {len(own)}",
        }
        for (subject, victim), own in found.items()
    ]
