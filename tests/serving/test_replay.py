"""Policies in virtual time, beside the best that anyone could have done."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

import pytest
from virtual import LEVELS, TIERS, row, setting

from apportion.serving.server.policy import ladder
from apportion.serving.server.replay import (
    Arrival,
    arrive,
    attainment,
    gaps,
    optimum,
    replay,
    value,
)
from apportion.serving.server.rival_policies import NAMED, slackfit

ACCURACY = dict(zip(LEVELS, (0.86, 0.91, 0.93, 0.94), strict=True))


def worth(level):
    return ACCURACY[level]


def trace(count, load, cv2, seed, due=0.134):
    """Rows of mixed tiers and lengths, at a multiple of what the whole budget carries."""
    draw = random.Random(seed)
    rows = [
        row(n, draw.choice(TIERS).name, draw.choice([32, 64, 64]), due=due, latest=5.0)
        for n in range(count)
    ]
    rate = load / 0.0336
    return arrive(rows, gaps(count, rate=rate, cv2=cv2, seed=seed))


def test_the_optimum_of_one_row_is_its_highest_level():
    one = [Arrival(0.0, row(due=1.0))]
    assert optimum(one, setting=setting(), worth=worth) == worth(1.0)
    hurried = [Arrival(0.0, row(due=0.02))]
    assert optimum(hurried, setting=setting(), worth=worth) == worth(0.5)
    assert optimum([Arrival(0.0, row(due=0.001))], setting=setting(), worth=worth) == 0.0


def test_the_optimum_waits_for_a_row_where_that_is_better():
    """A row due soon comes just after a long one could start."""
    alone = setting(max_batch=1)
    first = Arrival(0.0, row(0, due=1.0, lowest=1.0))
    second = Arrival(0.001, row(1, due=0.036, lowest=1.0))
    assert optimum([first, second], setting=alone, worth=worth) == 2 * worth(1.0)
    served = replay([first, second], ladder, setting=alone)
    assert [one.on_time for one in served] == [True, False]


def test_the_optimum_is_asked_of_small_cases_only():
    with pytest.raises(ValueError, match="at most 12 rows"):
        optimum([Arrival(0.0, row(n)) for n in range(13)], setting=setting(), worth=worth)


def test_no_policy_beats_the_optimum_and_the_ladder_comes_near_it():
    small = setting(max_batch=2)
    shares = {name: [] for name in NAMED}
    for seed in range(12):
        arrivals = trace(6, 2.0, 4.0, seed)
        best = optimum(arrivals, setting=small, worth=worth)
        for name, policy in NAMED.items():
            got = value(replay(arrivals, policy, setting=small), worth)
            assert got <= best + 1e-9
            shares[name].append(got / best)
    assert statistics.mean(shares["ladder"]) >= 0.95


@pytest.mark.parametrize(("load", "least"), [(1.2, 0.99), (2.3, 0.9)])
def test_under_bursts_the_ladder_keeps_deadlines_that_one_budget_does_not(load, least):
    """At 32 and 63 % of what the lowest level carries."""
    usual = setting()
    arrivals = trace(400, load, 8.0, 3)
    kept = attainment(replay(arrivals, ladder, setting=usual))
    whole = attainment(replay(arrivals, NAMED["static"], setting=usual))
    assert kept >= least and kept > whole
    assert kept >= attainment(replay(arrivals, slackfit, setting=usual)) - 0.02


def test_the_dearest_tier_is_lowered_last():
    """Whenever a row of it was lowered by the ladder, every cheaper tier was at its lowest."""
    usual = setting()
    for seed in range(5):
        for one in replay(trace(150, 3.0, 8.0, seed), ladder, setting=usual):
            rung = usual.rungs[one.rung]
            if rung["high-quality"] < 1.0:
                assert rung["low-cost"] == rung["balanced"] == LEVELS[0]


def test_what_does_not_fit_is_refused_and_counted():
    capped = setting(max_rows=3)
    pinned = replace(row(), lowest=1.0)
    served = replay(
        [Arrival(0.0, replace(pinned, number=n)) for n in range(9)], ladder, setting=capped
    )
    assert len(served) == 9 and sum(one.level is None for one in served) == 6


def test_two_workers_answer_more_in_time_than_one():
    arrivals = trace(120, 3.0, 1.0, 5)
    fixed = [replace(one, row=replace(one.row, lowest=one.row.highest)) for one in arrivals]
    one, two = (
        attainment(replay(fixed, ladder, setting=setting(workers=workers))) for workers in (1, 2)
    )
    assert two > one


def test_gaps_have_the_mean_and_the_spread_that_are_asked_for():
    drawn = gaps(20_000, rate=50.0, cv2=8.0, seed=1)
    mean = statistics.mean(drawn)
    assert mean == pytest.approx(0.02, rel=0.1)
    assert statistics.variance(drawn) / mean**2 == pytest.approx(8.0, rel=0.2)
