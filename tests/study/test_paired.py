"""Statistics of paired answers, each against a value that is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from apportion.study.answers import Answers, Said
from apportion.study.report.paired import (
    AS_GOOD,
    BETTER,
    NOT_TOLD_APART,
    WORSE,
    Difference,
    Paired,
    holm,
    mcnemar,
    pair,
    resampled,
)


def rights(ours_alone, theirs_alone, both=20, neither=10):
    """Which rows two methods have right, by how many there are of each kind."""
    counts = [ours_alone, theirs_alone, both, neither]
    mine = np.repeat([True, False, True, False], counts)
    theirs = np.repeat([False, True, True, False], counts)
    return mine, theirs


@pytest.mark.parametrize(("ours", "theirs"), [(9, 2), (2, 9), (5, 5), (1, 0), (40, 61)])
def test_mcnemar_is_the_exact_binomial_test_of_the_discordant_rows(ours, theirs):
    expected = stats.binomtest(min(ours, theirs), ours + theirs).pvalue
    assert mcnemar(*rights(ours, theirs)) == pytest.approx(expected)


def test_methods_that_never_differ_are_not_told_apart_by_mcnemar():
    assert mcnemar(*rights(0, 0)) == 1.0
    assert mcnemar(*rights(9, 2)) == pytest.approx(134 / 2048)  # 2 (1 + 11 + 55) / 2^11


def test_holm_by_hand():
    """Sorted .01 .02 .03 .04, times 4 3 2 1: .04 .06 .06 .04; and none below the one before."""
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.5]) == pytest.approx([1.0, 1.0])
    assert holm([0.2]) == [0.2] and holm([]) == []


def test_holm_is_over_the_budgets_of_each_seed():
    first, second = rights(12, 1), rights(9, 8, both=18, neither=8)
    mine = np.array([[first[0], second[0]], [second[0], first[0]]])  # [budgets, seeds, rows]
    theirs = np.array([[first[1], second[1]], [second[1], first[1]]])
    few, many = mcnemar(*first), mcnemar(*second)
    assert Paired(mine, theirs).p_values() == pytest.approx(
        np.array([[2 * few, many], [many, 2 * few]])
    )


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.01, 0.5, BETTER),
        (0.0, 0.5, AS_GOOD),
        (-0.29, 0.5, AS_GOOD),
        (-0.3, 0.5, NOT_TOLD_APART),
        (-2.0, 0.0, NOT_TOLD_APART),
        (-2.0, -0.01, WORSE),
        (-0.2, -0.1, WORSE),
    ],
)
def test_the_ends_of_the_interval_decide_the_word(low, high, word):
    assert Difference(0.1, low, high, (0.1,)).word == word


def simulated(draw, seeds, rows, *, of_rows, of_seeds):
    """Differences in -1, 0 and 1 whose mean is 0: rows alike in all seeds, seeds of their own."""
    row = draw.normal(scale=of_rows, size=rows)
    seed = draw.normal(scale=of_seeds, size=(seeds, 1))
    return np.sign(np.round(row + seed + draw.normal(scale=0.3, size=(seeds, rows))))


def test_the_interval_over_rows_is_that_of_their_mean():
    """One seed: the mean ± 1.96 standard errors, as there are many rows."""
    draw = np.random.default_rng(1)
    rows = simulated(draw, 1, 4000, of_rows=0.3, of_seeds=0.0)
    found = resampled(rows)
    error = 100 * rows.std() / np.sqrt(4000)
    assert found.mean == round(100 * rows.mean(), 2) == found.by_seed[0]
    assert found.low == pytest.approx(100 * rows.mean() - 1.96 * error, abs=0.06 * error)
    assert found.high == pytest.approx(100 * rows.mean() + 1.96 * error, abs=0.06 * error)


def test_the_interval_holds_the_truth_about_as_often_as_it_says(monkeypatch):
    monkeypatch.setattr("apportion.study.report.paired.RESAMPLES", 1000)
    draw = np.random.default_rng(2)
    drawn = [simulated(draw, 8, 150, of_rows=0.4, of_seeds=0.1) for _ in range(100)]
    held = [found.low <= 0.0 <= found.high for found in map(resampled, drawn)]
    assert 0.9 <= np.mean(held) <= 1.0


def test_seeds_that_differ_widen_the_interval_and_fewer_than_four_are_shown(monkeypatch):
    rows = simulated(np.random.default_rng(3), 5, 500, of_rows=0.3, of_seeds=0.2)
    both = resampled(rows)
    assert both.seeds == "" and len(both.by_seed) == 5
    three = resampled(rows[:3])
    assert three.seeds == ", ".join(f"{100 * seed.mean():+.2f}" for seed in rows[:3])
    monkeypatch.setattr("apportion.study.report.paired.ENOUGH_SEEDS", 6)
    monkeypatch.setattr("apportion.study.report.paired._ends", _ends_now())
    only_rows = resampled(rows)
    assert only_rows.high - only_rows.low < 0.7 * (both.high - both.low)
    assert only_rows.mean == both.mean


def _ends_now():
    """The ends without what was remembered of earlier calls."""
    from apportion.study.report import paired

    return paired._ends.__wrapped__


def test_the_same_answers_always_give_the_same_interval():
    rows = simulated(np.random.default_rng(4), 5, 300, of_rows=0.3, of_seeds=0.1)
    ends = _ends_now()
    kinds, counts = np.unique(rows, axis=1, return_counts=True)
    asked = kinds.tobytes(), tuple(counts.tolist())
    assert ends(*asked) == ends(*asked)
    shuffled = rows[:, np.random.default_rng(5).permutation(300)]
    assert resampled(shuffled) == resampled(rows)


def points(method, seeds, budget=0.5):
    return [
        {"stage": f"{method}-{s}", "data_seed": s, "seed": s, "form": "cut", "budget": budget}
        for s in seeds
    ]


def kept(right, rows="the rows"):
    right = np.asarray(right)
    half = np.full(len(right), 0.5, np.float16)
    said = Said(right.astype(np.uint8), half, half)
    return Answers("m", rows, np.ones(len(right), np.uint8), {("cut", 0.5): said})


ANSWERS = {
    "a-1": kept([1, 1, 0, 0]),
    "a-2": kept([1, 1, 1, 0]),
    "b-1": kept([1, 0, 0, 0]),
    "b-2": kept([0, 1, 1, 0]),
}


def test_answers_are_paired_by_seed():
    found = pair([points("a", (2, 1))], [points("b", (1, 2, 3))], answers=ANSWERS)
    assert found.mine.tolist() == [[[1, 1, 0, 0], [1, 1, 1, 0]]]
    assert found.theirs.tolist() == [[[1, 0, 0, 0], [0, 1, 1, 0]]]
    assert found.difference().by_seed == (25.0, 25.0)


def test_a_mean_over_budgets_is_taken_row_by_row():
    mine = np.array([[[1, 1, 0, 0]], [[1, 0, 0, 0]]], dtype=bool)
    theirs = np.array([[[1, 0, 0, 0]], [[0, 1, 1, 0]]], dtype=bool)
    both = Paired(mine, theirs)
    assert [both.difference(n).mean for n in (0, 1)] == [25.0, -25.0]
    assert both.difference().mean == 0.0


def test_answers_that_are_not_there_are_not_made_up():
    sides = [points("a", (1, 2))], [points("b", (1, 2))]
    assert pair(*sides, answers={k: v for k, v in ANSWERS.items() if k != "b-2"}) is None
    assert pair([points("a", (1,), budget=0.25)], [points("b", (1,))], answers=ANSWERS) is None
    assert pair([points("a", (1,))], [points("b", (2,))], answers=ANSWERS) is None
    assert pair([], [], answers=ANSWERS) is None


def test_answers_to_different_rows_are_not_compared():
    other = {**ANSWERS, "b-2": kept([0, 1, 1, 0], rows="others")}
    with pytest.raises(ValueError, match="different test rows: digests others, the rows"):
        pair([points("a", (1, 2))], [points("b", (1, 2))], answers=other)
