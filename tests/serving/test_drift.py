"""Drift is found, and where there is none the alarm stays silent."""

from __future__ import annotations

import numpy as np
import pytest

from apportion.serving.guarantees.drift import Drift, first_alarms, is_audited


def stream(risk: float, streams: int, audits: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((streams, audits)) < risk


def test_a_thousand_streams_at_the_promised_risk_ring_no_more_often_than_delta():
    rang = first_alarms(stream(0.01, 1000, 2000), disagree_at_most=0.01)
    assert (rang > 0).mean() <= 0.05
    assert (rang > 0).any()  # the alarm can ring: the test has power


def test_a_drift_to_three_times_the_risk_is_found():
    rang = first_alarms(stream(0.03, 200, 3000, 1), disagree_at_most=0.01)
    assert (rang > 0).all() and np.median(rang) < 400


def test_a_drift_after_many_good_rows_is_found():
    """Who bet from the start has lost nearly everything by then."""
    losses = np.concatenate([stream(0.004, 100, 4000, 2), stream(0.03, 100, 3000, 3)], axis=1)
    rang = first_alarms(losses, disagree_at_most=0.01)
    assert (rang > 4000).mean() >= 0.95 and np.median(rang) - 4000 < 1500


def test_one_stream_is_watched_as_many_are():
    losses = stream(0.03, 1, 1500, 4)
    watch, rang = Drift(disagree_at_most=0.01), 0
    for number, loss in enumerate(losses[0], start=1):
        if watch.observe(bool(loss)) and not rang:
            rang = number
    assert rang == first_alarms(losses, disagree_at_most=0.01)[0] > 0
    assert watch.alarm and watch.audited == 1500 and watch.differed == losses.sum()


def test_wealth_is_one_on_average_at_the_promised_risk():
    """Over all outcomes of ten audits, weighted by their probability."""
    mean = 0.0
    for outcome in range(1024):
        bits = [bool(outcome >> n & 1) for n in range(10)]
        watch = Drift(disagree_at_most=0.2)
        for bit in bits:
            watch.observe(bit)
        mean += 0.2 ** sum(bits) * 0.8 ** (10 - sum(bits)) * watch.wealth
    assert mean == pytest.approx(1.0, rel=1e-9)


def test_an_alarm_stays():
    watch = Drift(disagree_at_most=0.01)
    while not watch.observe(True):
        pass
    for _ in range(5000):
        watch.observe(False)
    assert watch.wealth < 1.0 and watch.alarm


def test_a_hash_of_the_id_picks_the_audits():
    ids = [f"row {n}" for n in range(20_000)]
    picked = [is_audited(one, 0.02) for one in ids]
    assert 300 < sum(picked) < 500
    assert picked == [is_audited(one, 0.02) for one in ids]
    other = [is_audited(one, 0.02, salt="x") for one in ids]
    assert sum(map(bool.__and__, picked, other)) < 50
    assert all(is_audited(one, 1.0) for one in ids[:100])
    assert not any(is_audited(one, 0.0) for one in ids[:100])


@pytest.mark.parametrize("numbers", [(0.0, 0.05), (1.0, 0.05), (0.01, 0.0), (0.01, 1.5)])
def test_a_share_outside_0_and_1_is_refused(numbers):
    with pytest.raises(ValueError, match="between 0 and 1"):
        Drift(disagree_at_most=numbers[0], delta=numbers[1])
    with pytest.raises(ValueError, match="audited is between 0 and 1"):
        is_audited("a", 1.5)
