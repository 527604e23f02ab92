"""A guarantee holds as often as it says, on a population whose truth is known."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from pools import PRICES, pool

from apportion.serving.guarantees.cascade import ends_at
from apportion.serving.guarantees.certifying import texts_needed
from apportion.serving.guarantees.file_certifying import draw_sizes, last_of_file, most_rows
from apportion.serving.guarantees.guarantee import (
    binomial_bound,
    binomial_tail,
    check_promise,
    draw_needed,
    hypergeometric_tail,
    last_certified,
    rows_needed,
)
from apportion.serving.guarantees.threshold_path import TIES, find_path

EPSILON, DRAWS, ROWS = 0.01, 500, 2000
ACCEPTED = 0.07  # 5 % and two standard errors of 500 draws


def test_the_rows_that_can_certify_anything_are_these():
    assert [rows_needed(e, 0.05) for e in (0.01, 0.005, 0.02)] == [299, 598, 149]
    for epsilon, delta in ((0.01, 0.05), (0.5, 0.25), (0.3, 0.999), (1e-4, 1e-6)):
        needed = rows_needed(epsilon, delta)
        assert (1 - epsilon) ** needed <= delta
        assert needed == 1 or (1 - epsilon) ** (needed - 1) > delta


def test_a_promise_that_takes_milliards_of_rows_is_counted_at_once():
    assert rows_needed(1e-9, 0.05) == pytest.approx(-math.log(0.05) * 1e9, rel=1e-6)
    assert rows_needed(1e-15, 0.05) > 1e15
    for epsilon in (0.01, 0.3, 1e-9):
        count, needed = texts_needed(epsilon, 0.05), rows_needed(epsilon, 0.05)
        assert count - count // 3 >= needed and count // 3 >= 20
        assert count == 60 or (count - 1) - (count - 1) // 3 < needed


def test_tails_are_exact():
    by_hand = sum(math.comb(50, k) * 0.1**k * 0.9 ** (50 - k) for k in range(4))
    assert float(binomial_tail(3, 50, 0.1)) == pytest.approx(by_hand, rel=1e-12)
    ways = sum(math.comb(12, k) * math.comb(88, 30 - k) for k in range(3)) / math.comb(100, 30)
    found = hypergeometric_tail(2, 30, population=100, differing=12)
    assert float(found) == pytest.approx(ways, rel=1e-12)
    assert float(binomial_tail(4, 1000, 0.01)) == pytest.approx(0.0287, abs=1e-4)


def test_the_bound_is_where_the_tail_is_delta():
    for wrong, rows in ((0, 299), (4, 1000), (12, 2000)):
        bound = binomial_bound(wrong, rows, 0.05)
        assert float(binomial_tail(wrong, rows, bound)) == pytest.approx(0.05, rel=1e-6)
    assert binomial_bound(10, 10, 0.05) == 1.0


def test_a_draw_that_is_needed_is_the_smallest_that_does():
    needed = draw_needed(2000, 21, 0.05)
    assert float(hypergeometric_tail(0, needed, population=2000, differing=21)) <= 0.05
    assert float(hypergeometric_tail(0, needed - 1, population=2000, differing=21)) > 0.05
    assert draw_needed(10, 11, 0.05) is None
    assert not hypergeometric_tail([0, 3], 5, population=10, differing=11).any()


def test_testing_stops_at_the_first_that_fails():
    assert last_certified([0.0, 0.01, 0.2, 0.0], 0.05) == 1
    assert last_certified([0.06], 0.05) is None
    assert last_certified([], 0.05) is None


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_a_share_or_a_confidence_outside_0_and_1_is_refused(share):
    with pytest.raises(ValueError, match=r"between 0 and 1, such as 0\.01"):
        check_promise(share, 0.95)
    with pytest.raises(ValueError, match=r"between 0 and 1, such as 0\.95"):
        check_promise(0.01, share)


def wrong_at(population, path):
    """Whether each step of a path answers each row otherwise than the whole model."""
    differs = population.differs(TIES)
    places = np.arange(len(population))
    return np.array([differs[ends_at(population.margins, s.thresholds), places] for s in path])


@pytest.fixture(scope="module")
def population():
    return pool(20_000, 1)


@pytest.fixture(scope="module")
def path(population):
    """Found on tuning rows of their own."""
    return find_path(pool(4000, 2), PRICES, epsilon=EPSILON)


def risks_of_the_certified(wrong, delta):
    """The true risk of what 500 draws certify.

    Rows are drawn with replacement, so the population's risk is the truth.
    """
    draw = np.random.default_rng(3)
    found = []
    for _ in range(DRAWS):
        counts = wrong[:, draw.integers(0, wrong.shape[1], ROWS)].sum(axis=1)
        last = last_certified(binomial_tail(counts, ROWS, EPSILON), delta)
        found.append(0.0 if last is None else wrong[last].mean())
    return np.array(found)


def test_a_guarantee_is_broken_as_rarely_as_it_says(population, path):
    risks = risks_of_the_certified(wrong_at(population, path), 0.05)
    assert (risks > EPSILON).mean() <= ACCEPTED
    # And it is no empty promise: most of what may differ is made use of.
    assert np.median(risks) > 0.4 * EPSILON


def test_with_little_confidence_guarantees_are_broken_often(population, path):
    assert (risks_of_the_certified(wrong_at(population, path), 0.5) > EPSILON).mean() > 0.2


def test_many_thresholds_that_are_a_little_too_bold_do_not_add_up():
    """Thirty steps, each just above the promise: only the order of the tests keeps it.

    To take the last one that passes, wherever it stands, would break the guarantee often.
    """
    wrong = np.random.default_rng(1).random((30, 20_000)) < 0.0102
    wrong = wrong[wrong.mean(axis=1) > EPSILON]
    assert (risks_of_the_certified(wrong, 0.05) > EPSILON).mean() <= ACCEPTED
    draw, passed = np.random.default_rng(3), 0
    for _ in range(100):
        counts = wrong[:, draw.integers(0, wrong.shape[1], ROWS)].sum(axis=1)
        passed += (binomial_tail(counts, ROWS, EPSILON) <= 0.05).any()
    assert passed > 30


def test_a_bad_cascade_is_caught():
    """Tuned where all was well; in the population, the small level errs even where it is sure."""
    path = find_path(pool(1000, 2), PRICES, epsilon=EPSILON)
    wrong = wrong_at(pool(20_000, 5, bad=True), path)
    assert (risks_of_the_certified(wrong, 0.05) > EPSILON).mean() <= ACCEPTED
    assert wrong.mean(axis=1).max() > 2 * EPSILON


def test_more_boldness_on_the_path_is_cheaper(path):
    assert path[0].thresholds == (None, None) and path[0].price == 1.0
    for before, after in pairwise(path):
        assert after.price < before.price and after.risk >= before.risk


def test_what_the_path_says_of_its_tuning_rows_is_true():
    tuning = pool(1000, 2)
    path = find_path(tuning, PRICES, epsilon=EPSILON)
    assert any(None not in step.thresholds for step in path)
    wrong = wrong_at(tuning, path).mean(axis=1)
    assert (wrong <= np.array([step.risk for step in path]) + 1e-9).all()
    for step in path[1:]:
        ends = ends_at(tuning.margins, step.thresholds)
        price = (ends == 2).mean()
        for level, least in enumerate(step.thresholds):
            price += 0.0 if least is None else PRICES[level] * (ends >= level).mean()
        assert step.price == pytest.approx(price)


def test_a_tie_of_the_whole_model_counts_as_a_disagreement():
    tied = pool(1000, 2)
    tied.margins[-1] = TIES / 2
    assert tied.differs(TIES)[:-1].all() and not tied.differs(TIES)[-1].any()
    assert len(find_path(tied, PRICES, epsilon=EPSILON)) == 1


def is_broken(wrong, path, count, draw, tuned, tested):
    """Whether a file's certificate is untrue, and whether it lets any text end early."""
    drawn = draw.permutation(count)
    counts = wrong[:, drawn[tuned : tuned + tested]].sum(axis=1)
    last = last_of_file(counts, tested, count=count, tuned=tuned, epsilon=EPSILON, delta=0.05)
    differing = np.delete(wrong[last], drawn[:tuned]).sum()  # the whole model answered the tuned
    return differing > EPSILON * count, last > 0


@pytest.mark.parametrize("count", [3000, 8000])
def test_files_keep_what_their_certificates_say(count, path):
    """250 files each, of cached answers."""
    wrong = wrong_at(pool(60_000, 7), path)
    tuned, tested = draw_sizes(count, epsilon=EPSILON, delta=0.05)
    draw = np.random.default_rng(11)
    found = []
    for _ in range(DRAWS // 2):
        file = wrong[:, draw.choice(wrong.shape[1], count, replace=False)]
        found.append(is_broken(file, path, count, draw, tuned, tested))
    broken, early = np.mean(found, axis=0)
    assert broken <= ACCEPTED
    assert early > 0.7  # most files get something from it


def test_files_whose_own_rows_tuned_keep_it_too():
    answers, count, draw = pool(60_000, 7), 6000, np.random.default_rng(5)
    tuned, tested = draw_sizes(count, epsilon=EPSILON, delta=0.05)
    found = []
    for _ in range(30):
        file = answers.rows(draw.choice(len(answers), count, replace=False))
        path = find_path(file.rows(slice(0, tuned)), PRICES, epsilon=EPSILON)
        wrong = wrong_at(file.rows(slice(tuned, None)), path)
        counts = wrong[:, :tested].sum(axis=1)
        last = last_of_file(counts, tested, count=count, tuned=tuned, epsilon=EPSILON, delta=0.05)
        found.append((wrong[last].sum() > EPSILON * count, last > 0))
    broken, early = np.sum(found, axis=0)
    assert broken <= 4 and early > 18  # five of 30 are beyond 95 % of what 5 % would give


def test_a_strict_promise_draws_more_rows():
    """Of a large file, a thousandth can be promised."""
    most = most_rows(0.001, 0.05)
    tuned, tested = draw_sizes(10**7, epsilon=0.001, delta=0.05)
    assert 3000 < tuned + tested <= most
    assert most_rows(0.01, 0.05) == 3000


def test_a_file_that_is_too_small_is_not_drawn_from():
    assert draw_sizes(300, epsilon=EPSILON, delta=0.05) is None
    tuned, tested = draw_sizes(4000, epsilon=EPSILON, delta=0.05)
    assert tuned + tested <= 2000
