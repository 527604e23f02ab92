"""Length: schedules that never rise, and a frontier that is monotone in both of its axes."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.method.frontier import Frontier
from apportion.method.length import LEAST, Schedule, geometric, kept_tokens
from apportion.method.units import Allocation, Units

shares = st.integers(1, 1000).map(lambda part: part / 1000)
lengths = st.integers(1, 4096)


@st.composite
def schedules(draw, layers=None):
    layers = layers or draw(st.integers(1, 6))
    return Schedule(tuple(sorted((draw(shares) for _ in range(layers)), reverse=True)))


@st.composite
def frontiers(draw):
    layers = draw(st.integers(1, 4))
    count = draw(st.integers(1, 4))
    budgets = sorted({draw(shares) for _ in range(count)} - {1.0})
    widths = sorted(draw(shares) for _ in budgets)
    found = [draw(schedules(layers)).shares for _ in budgets]
    rising = [tuple(map(min, zip(*found[n:], strict=True))) for n in range(len(found))]
    return Frontier(
        (*budgets, 1.0),
        (*widths, 1.0),
        (*map(Schedule, rising), Schedule.everything(layers)),
    )


@given(lengths, shares)
def test_a_row_keeps_its_share_but_eight_tokens_at_least(count, share):
    wanted = min(count, max(8, math.ceil(Fraction(round(share * 1000), 1000) * count)))
    assert kept_tokens(count, share) == wanted


@given(lengths, schedules())
def test_no_layer_reads_more_tokens_than_the_one_before(length, schedule):
    tokens = schedule.tokens(length)
    assert list(tokens) == sorted(tokens, reverse=True)
    assert all(min(length, LEAST) <= count <= length for count in tokens)


@given(schedules(layers=3), shares, lengths)
def test_the_way_between_two_schedules_is_one(schedule, way, length):
    whole = Schedule.everything(3)
    between = schedule.towards(whole, way)
    for less, count, more in zip(
        schedule.tokens(length), between.tokens(length), whole.tokens(length), strict=True
    ):
        assert less <= count <= more
    assert schedule.towards(whole, 1.0) == whole


@given(frontiers(), st.floats(0.001, 1.0), st.floats(0.001, 1.0), lengths)
def test_more_budget_buys_no_less_of_either(frontier, first, second, length):
    low, high = sorted((first, second))
    assert frontier.width(low) <= frontier.width(high) + 1e-12
    less, more = (frontier.schedule(budget).tokens(length) for budget in (low, high))
    assert all(a <= b for a, b in zip(less, more, strict=True))


@given(frontiers())
def test_a_budget_of_one_buys_everything(frontier):
    assert frontier.width(1.0) == 1.0
    assert frontier.schedule(1.0).is_whole


@given(frontiers())
def test_a_frontier_is_read_as_it_was_written(frontier):
    assert Frontier.from_dict(frontier.to_dict()) == frontier


def test_a_frontier_lies_between_its_points():
    frontier = Frontier((0.25, 1.0), (0.5, 1.0), (Schedule((0.8, 0.4)), Schedule.everything(2)))
    assert frontier.width(0.25) == 0.5
    assert frontier.schedule(0.25).shares == (0.8, 0.4)
    assert frontier.width(0.625) == 0.75
    assert frontier.schedule(0.625).shares == (0.9, 0.7)
    assert frontier.width(0.125) == 0.25  # below, the width alone shrinks
    assert frontier.schedule(0.125).shares == (0.8, 0.4)


def test_the_cost_of_an_allocation_is_that_of_its_tokens():
    units = Units.grid(2, 2)
    kept = Allocation.of(units, (0, 2, 3))
    assert kept.cost == 0.75
    short = kept.shortened(Schedule((1.0, 0.5)), (1.0, 1.0, 0.5, 0.5))
    assert short.cost == 0.5
    assert kept.shortened(Schedule.everything(2), (1.0,) * 4) == kept


def test_a_geometric_schedule_falls_by_one_factor():
    assert geometric(5, 0.25).shares == (1.0, 0.707, 0.5, 0.354, 0.25)
    assert geometric(3, 0.5, crop=0.5).shares == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ((), "one at least"),
        ((0.5, 0.8), "never rises: layer 1 can't read 0.8 of the tokens after 0.5"),
        ((1.0, 0.0), "from 0.001 to 1, not 0.0"),
        ((1.2,), "not 1.2"),
        ((True,), "not True"),
        ((math.nan,), "not nan"),
    ],
)
def test_a_schedule_that_can_not_be_is_refused(bad, says):
    with pytest.raises(ValueError, match=says):
        Schedule(bad)


def test_a_share_of_fewer_than_eight_tokens_is_refused_and_short_texts_are_not():
    schedule = Schedule((1.0, 0.05))
    with pytest.raises(ValueError, match=r"0\.05 is 7 of 128 tokens; a layer reads 8 at least"):
        schedule.check_length(128)
    schedule.check_length(512)
    assert schedule.tokens(12) == (12, 8)
    assert schedule.tokens(3) == (3, 3)


@pytest.mark.parametrize(
    ("budgets", "widths", "found", "says"),
    [
        ((0.5, 1.0), (0.8, 1.0), ((0.5,), (0.9,)), "ends at budget 1"),
        ((0.5, 1.0), (0.8, 0.9), ((0.5,), (1.0,)), "ends at budget 1"),
        ((0.2, 0.5, 1.0), (0.8, 0.7, 1.0), ((0.5,), (0.6,), (1.0,)), "can't buy less"),
        ((0.2, 0.5, 1.0), (0.6, 0.7, 1.0), ((0.7,), (0.6,), (1.0,)), "can't buy less"),
        ((0.5, 0.2, 1.0), (0.6, 0.7, 1.0), ((0.5,), (0.6,), (1.0,)), "can't buy less"),
        ((0.5, 1.0), (1.0,), ((0.5,), (1.0,)), "a width and a schedule for each"),
        ((0.5, 1.0), (0.8, 1.0), ((0.5, 0.5), (1.0,)), "of as many layers"),
    ],
)
def test_a_frontier_that_falls_is_refused(budgets, widths, found, says):
    with pytest.raises(ValueError, match=says):
        Frontier(budgets, widths, tuple(Schedule(one) for one in found))


@pytest.mark.parametrize("data", [{}, {"points": 3}, {"points": [[0.5, 0.5]]}, {"points": []}])
def test_a_damaged_frontier_is_refused(data):
    with pytest.raises(ValueError, match=r"frontier|values to unpack"):
        Frontier.from_dict(data)
