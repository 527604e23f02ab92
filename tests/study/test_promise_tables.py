"""Tables of certificates, forecasts and jobs on Ray: which records count, and for what."""

from __future__ import annotations

from apportion.study.report.promise_tables import promise_tables


def table(records, study, name):
    (found,) = [one for one in promise_tables(records)[study] if one.name == name]
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows], found.note


def certified(draw, speed, *, differ=10, method="cascade", precision="int8", **more):
    where = {"kind": "certified", "data": "news", "method": method, "precision": precision}
    promised = {"disagree_at_most": 0.01, "data_seed": draw, "test_rows": 1000, "cost": 0.2}
    found = {"speed": speed, "test_disagreements": differ, "ends": [0.9, 0.1], "seconds": 60}
    machine = {"machine": {"processor": "a processor", "capability": "VNNI"}}
    return {**where, **promised, **found, **machine, **more}


def test_without_records_every_table_says_so():
    for tables in promise_tables([]).values():
        assert all(one.rows == (("no record yet",),) for one in tables)


def test_draws_of_one_method_and_runtime_are_averaged_and_the_newest_counts():
    lines = [certified(1, 9.0), certified(1, 2.0, over_eager=8.0), certified(2, 4.0, differ=11)]
    lines += [certified(1, 1.0, method="depth"), certified(1, 1.5, precision="float32")]
    rows, note = table(lines, "certificates", "speed")
    by = {(row["method"], row["run by"]): row for row in rows}
    own = by["budgets of one checkpoint", "int8 file"]
    assert (own["speed"], own["over torch eager"], own["draws"]) == (
        "3.00x (2.00 – 4.00)",
        "8.00x",
        "2",
    )
    assert own["truly differ"] == "1.05%" and own["draws above the promise"] == "1"
    assert by["first layers, early exit", "int8 file"]["speed"].startswith("1.00x")
    assert by["budgets of one checkpoint", "torch views"]["speed"].startswith("1.50x")
    assert note.endswith("Measured on a processor (VNNI).")


def forecast(target, error, p95, threads=1):
    where = {"kind": "forecast", "stage": "s", "precision": "int8", "threads": threads}
    shape = {"rows": 1, "length": 32, "target_ms": target, "runtime": "x", "margin": 0.05}
    return {**where, **shape, "error": error, "p95_ms": p95, "within": 1.0}


def test_forecasts_are_summed_up_by_what_ran_them():
    lines = [forecast(10.0, -0.02, 9.0), forecast(20.0, 0.04, 21.0), forecast(9.0, 0.5, 8.0, 2)]
    (one, two), _ = table(lines, "milliseconds", "check")
    assert (one["targets"], one["error, median"]) == ("2", "3.0%")
    assert one["targets kept by 95 % of the calls"] == "50.0%"
    assert two["threads"] == "2" and two["error, median"] == "50.0%"


def test_killed_jobs_are_counted_by_what_was_killed():
    def line(number, victim, same, killed=True):
        where = {"kind": "ray_kill", "subject": "x", "seed": 0, "round": number}
        return {**where, "victim": victim, "killed": killed, "rows": 700, "same": same}

    lines = [line(0, "actor", True), line(1, "actor", False), line(2, "node", True, killed=False)]
    (actor, node), _ = table(lines, "ray", "kills")
    assert (actor["same"], actor["jobs"]) == ("1 of 2", "2")
    assert node["under way when it was to be killed"] == "0"
