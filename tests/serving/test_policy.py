"""The policy, as a function: the rungs, the plan, who is admitted."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from virtual import LEVELS, TIERS, Affine, queues, row, setting, waiting

from apportion.serving.server.admission import Load, admit
from apportion.serving.server.policy import QUANTUM, ladder
from apportion.serving.server.replay import Arrival, replay
from apportion.serving.server.rival_policies import NAMED
from apportion.serving.server.rungs import build_ladder, usual_worth
from apportion.serving.server.setting import RESERVED, drain, highest_in_time, padded
from apportion.serving.server.terms import Refusal, Terms, Tier

SETTING = setting()


def on_time(now, queue):
    return [
        one for one in queue if now + SETTING.seconds(1, one.length, one.lowest) <= one.deadline
    ]


def level_at(one, rung):
    return min(max(SETTING.rungs[rung][one.tier], one.lowest), one.highest)


# The ladder.


@given(st.lists(st.floats(0.1, 100.0), min_size=3, max_size=3))
def test_rungs_lead_from_every_highest_level_to_every_lowest_and_never_rise(weights):
    tiers = [replace(tier, weight=w) for tier, w in zip(TIERS, weights, strict=True)]
    rungs = build_ladder(tiers, LEVELS, worth=usual_worth(LEVELS), times=LEVELS)
    assert rungs[0] == {"low-cost": 0.25, "balanced": 0.5, "high-quality": 1.0}
    assert set(rungs[-1].values()) == {0.125}
    for above, below in pairwise(rungs):
        changed = [name for name in above if below[name] != above[name]]
        assert len(changed) == 1 and below[changed[0]] < above[changed[0]]


def test_the_usual_tiers_are_lowered_in_the_order_of_their_price():
    rungs = SETTING.rungs
    first = {
        name: next(n for n, r in enumerate(rungs) if r[name] < rungs[0][name]) for name in rungs[0]
    }
    last = {name: max(n for n, r in enumerate(rungs) if r[name] > 0.125) for name in rungs[0]}
    assert last["low-cost"] < first["balanced"] and last["balanced"] < first["high-quality"]


def test_a_tier_keeps_its_min_budget_on_the_last_rung():
    tiers = [Tier("a", 1.0, 0.5), Tier("b", 0.25)]
    rungs = build_ladder(tiers, LEVELS, worth=usual_worth(LEVELS), times=LEVELS)
    assert rungs[-1] == {"a": 0.5, "b": 0.125}


def test_levels_that_are_worth_the_same_are_given_up_first():
    tiers = [Tier("a", 1.0), Tier("b", 0.5)]
    rungs = build_ladder(tiers, LEVELS, worth=[0.5, 0.8, 0.9, 0.9], times=LEVELS)
    assert rungs[1] == {"a": 0.5, "b": 0.5}


# The plan.


def test_a_lone_row_runs_at_its_highest_level():
    plan = ladder(0.0, [row(due=1.0)], [], SETTING)
    assert (plan.rows, plan.level, plan.rung) == ((0,), 1.0, 0)


@given(waiting(0), st.sampled_from([0.0, 0.05, 0.4]))
def test_a_row_by_itself_gets_the_plan_that_it_gets_before_one_that_can_wait_for_ever(one, busy):
    two = setting(workers=2)
    other = replace(one, number=1, deadline=1e9, latest=2e9, alone=True)
    both = ladder(0.0, [one, other], [busy], two)
    assert ladder(0.0, [one], [busy], two) == both


def test_an_empty_queue_needs_no_plan():
    assert all(policy(0.0, [], [], SETTING) is None for policy in NAMED.values())


@given(queues(), st.sampled_from(sorted(NAMED)))
def test_a_free_worker_always_gets_rows_and_each_at_a_level_of_its_terms(queue, name):
    plan = NAMED[name](0.0, queue, [], SETTING)
    assert plan.rows and len(set(plan.rows)) == len(plan.rows) <= SETTING.max_batch
    for place in plan.rows:
        assert queue[place].lowest <= plan.level <= queue[place].highest
    assert plan.level in LEVELS


@given(queues(), waiting(99))
def test_a_further_row_never_lowers_the_rung(queue, other):
    before = ladder(0.0, queue, [], SETTING).rung
    assert ladder(0.0, [*queue, other], [], SETTING).rung >= before


@given(queues(), st.data())
def test_an_earlier_deadline_never_lowers_the_rung_while_the_row_stays_on_time(queue, data):
    place = data.draw(st.sampled_from(range(len(queue))))
    one = queue[place]
    least = SETTING.seconds(1, one.length, one.lowest)
    if one.deadline < least:
        return
    moved = replace(one, deadline=data.draw(st.floats(least, one.deadline)))
    before = ladder(0.0, queue, [], SETTING).rung
    after = ladder(0.0, [*queue[:place], moved, *queue[place + 1 :]], [], SETTING).rung
    assert after >= before


@given(queues(shortest=0.1))
def test_the_rung_is_the_lowest_at_which_rows_wait_less_than_they_could(queue):
    if on_time(0.0, queue) != queue:
        return

    def fits(rung):
        wait = 0.0
        for one in sorted(queue, key=lambda one: one.deadline):
            takes = SETTING.seconds(1, one.length, level_at(one, rung))
            if wait > (1.0 - RESERVED) * (one.deadline - takes) + 1e-9:
                return False
            wait += takes
        return True

    fitting = [rung for rung in range(len(SETTING.rungs)) if fits(rung)]
    wanted = fitting[0] if fitting else len(SETTING.rungs) - 1
    assert ladder(0.0, queue, [], SETTING).rung == wanted


@given(queues(shortest=0.1, longest=1.0))
def test_what_fits_is_answered_in_time_if_the_forecast_holds_and_nobody_comes(queue):
    """The rule that can be proved: batches, and overtaking, never make a row late."""
    rungs = range(len(SETTING.rungs))
    ends = [0.0] * len(SETTING.rungs)
    fits = [True] * len(SETTING.rungs)
    for one in sorted(queue, key=lambda one: (one.deadline, one.number)):
        for rung in rungs:
            ends[rung] += SETTING.seconds(1, one.length, level_at(one, rung))
            fits[rung] &= ends[rung] <= one.deadline
    if any(fits):
        served = replay([Arrival(0.0, one) for one in queue], ladder, setting=SETTING)
        assert all(one.on_time for one in served)


def test_rows_that_cannot_be_on_time_come_after_those_that_can_at_their_lowest_level():
    queue = [row(0, due=0.001, latest=9.0), row(1, due=0.05)]
    plan = ladder(0.0, queue, [], SETTING)
    assert plan.rows[0] == 1
    late = ladder(0.0, queue[:1], [], SETTING)
    assert (late.rows, late.level) == ((0,), 0.125)


def test_a_late_row_is_not_overtaken_for_ever():
    """It is due again at `latest`, and takes its turn by that."""
    queue = [row(0, due=0.0, latest=1.0), *(row(n, due=30.0, latest=35.0) for n in range(1, 9))]
    assert 0 in ladder(0.5, queue, [], SETTING).rows
    assert ladder(5.0, queue, [], SETTING).rows[0] == 1  # past both: the others first


def test_rows_whose_lengths_differ_much_share_no_batch():
    plan = ladder(0.0, [row(0, length=128, due=9.0), row(1, length=64, due=9.0)], [], SETTING)
    assert len(plan.rows) == 1
    both = ladder(0.0, [row(0, length=64, due=9.0), row(1, length=64, due=9.0)], [], SETTING)
    assert len(both.rows) == 2


def test_a_row_whose_batch_failed_runs_alone():
    queue = [row(0, due=9.0, alone=True), row(1, due=9.0), row(2, due=9.0)]
    assert ladder(0.0, queue, [], SETTING).rows == (0,)
    assert ladder(0.0, queue[1:] + queue[:1], [], SETTING).rows == (2,)  # the oldest of one aim


@pytest.mark.parametrize(("due", "last", "bound"), [(0.2, 9.0, 0.2), (0.8, 0.8, QUANTUM * 0.8)])
def test_a_batch_ends_by_the_deadline_of_its_head_and_in_its_share_of_the_last(due, last, bound):
    queue = [row(n, due=due, highest=1.0, lowest=1.0) for n in range(30)]
    queue.append(row(30, due=last, highest=0.125, lowest=0.125))
    plan = ladder(0.0, queue, [], SETTING)
    assert SETTING.seconds(len(plan.rows), 64, 1.0) <= bound
    assert SETTING.seconds(len(plan.rows) + 1, 64, 1.0) > bound


def test_a_row_alone_keeps_its_level_however_near_its_deadline_is():
    takes = SETTING.seconds(1, 64, 1.0)
    assert ladder(0.0, [row(due=1.001 * takes)], [], SETTING).level == 1.0


def test_where_all_are_late_batches_are_as_large_as_they_may_be():
    queue = [row(n, due=-1.0, highest=1.0, lowest=0.125) for n in range(40)]
    assert len(ladder(0.0, queue, [], SETTING).rows) == SETTING.max_batch


def test_behind_a_late_head_a_near_deadline_of_others_keeps_no_batch_short():
    late = [row(n, due=-1.0, latest=-0.5) for n in range(40)]
    just_late = [row(40, due=0.0001)]  # the last that came
    assert len(ladder(0.0, late + just_late, [], SETTING).rows) == SETTING.max_batch


def test_rows_of_like_length_join_first_and_those_that_are_on_time_before_late_ones():
    lengths = [32, 48, 32, 32]
    queue = [row(n, "low-cost", length, due=9.0) for n, length in enumerate(lengths)]
    two = setting(max_batch=2)
    assert ladder(0.0, queue, [], two).rows == (0, 2)
    low = {"highest": 0.125, "lowest": 0.125}
    queue = [row(0, due=9.0, **low), row(1, length=48, due=9.0, **low)]
    queue.append(row(2, due=-1.0, latest=20.0, **low))

    class EveryLengthAlike:
        def milliseconds(self, *, rows, length, level):
            return 2.0 + rows

    alike = setting(EveryLengthAlike(), max_batch=2)
    assert ladder(0.0, queue, [], alike).rows == (0, 1)


def test_a_request_that_can_not_be_on_time_as_a_whole_holds_up_nobody():
    alone = SETTING.seconds(1, 64, 0.125)
    many = [row(n, "low-cost", due=2 * alone, request=7) for n in range(9)]
    other = row(9, "low-cost", due=1.5 * alone, request=8)
    assert ladder(0.0, [*many, other], [], SETTING).rows[0] == 9
    each = [replace(one, request=None) for one in many]  # nine requests: the first two can
    assert ladder(0.0, [*each, replace(other, deadline=2.5 * alone)], [], SETTING).rows[0] == 0


def test_a_batch_that_would_be_slower_than_its_rows_in_turn_is_not_made():
    class Worse:
        def milliseconds(self, *, rows, length, level):
            return level * rows**2

    plan = ladder(0.0, [row(n, due=9.0) for n in range(4)], [], setting(Worse()))
    assert len(plan.rows) == 1


def test_idle_workers_share_the_queue():
    two = setting(workers=2)
    queue = [row(n, due=9.0) for n in range(6)]
    assert len(ladder(0.0, queue, [0.0], two).rows) == 3
    assert len(ladder(0.0, queue, [0.5], two).rows) == 6


def test_a_busy_worker_leaves_less_time():
    two = setting(workers=2)
    queue = [row(n, due=0.2) for n in range(8)]
    assert ladder(0.0, queue, [0.1], two).rung > ladder(0.0, queue, [0.0], two).rung


def test_slower_batches_than_forecast_raise_the_rung():
    queue = [row(n, due=0.2) for n in range(4)]
    assert (
        ladder(0.0, queue, [], SETTING.corrected(3.0)).rung > ladder(0.0, queue, [], SETTING).rung
    )


def test_plans_leave_the_margin_of_the_forecast():
    careful = replace(SETTING, margin=0.5)
    assert careful.seconds(2, 64, 0.5) == pytest.approx(1.5 * SETTING.seconds(2, 64, 0.5))
    assert careful.forecast_seconds(2, 64, 0.5) == SETTING.forecast_seconds(2, 64, 0.5)
    queue = [row(n, due=0.2) for n in range(4)]
    assert ladder(0.0, queue, [], careful).rung > ladder(0.0, queue, [], SETTING).rung


def test_static_runs_everything_at_one_level_inside_the_terms():
    fixed = replace(SETTING, rule=replace(SETTING.rule, name="static", budget=0.6))
    assert NAMED["static"](0.0, [row(due=0.001)], [], fixed).level == 0.5
    assert NAMED["static"](0.0, [row(tier="low-cost")], [], fixed).level == 0.25


def test_slackfit_spends_the_slack_of_the_head():
    queue = [row(n, due=0.5) for n in range(12)]
    took = []
    for now in (0.0, 0.3, 0.45):
        plan = NAMED["slackfit"](now, queue, [], SETTING)
        took.append(SETTING.seconds(len(plan.rows), 64, plan.level))
        assert took[-1] <= 0.5 - now
    assert took == sorted(took, reverse=True) and took[0] > took[-1]


# Targets, admission, drain.


@pytest.mark.parametrize(("target", "level"), [(1e6, 1.0), (21.0, 0.5), (13.0, 0.25), (0.1, 0.125)])
def test_a_target_buys_the_highest_level_that_an_idle_server_meets_it_with(target, level):
    terms = Terms("high-quality", 1.0, 0.125, target, 1e4)
    assert highest_in_time(terms, [64], SETTING) == level


def test_time_that_is_spent_already_counts():
    terms = Terms("high-quality", 1.0, 0.125, 21.0, 1e4)
    assert highest_in_time(terms, [64], SETTING, spent=0.010) == 0.125
    assert highest_in_time(terms, [64], replace(SETTING, reply=0.010)) == 0.125


@given(st.lists(st.sampled_from([16, 48, 64, 128]), min_size=1, max_size=12), st.floats(1.0, 900.0))
def test_what_the_rows_of_a_request_ask_for_is_what_an_idle_server_runs_them_at(lengths, target):
    terms = Terms("high-quality", 1.0, 0.125, target, 1e4)
    asked = highest_in_time(terms, lengths, SETTING)
    due = {"due": target / 1000.0, "request": 0, "highest": asked}
    plan = ladder(0.0, [row(n, length=one, **due) for n, one in enumerate(lengths)], [], SETTING)
    assert plan.level == asked and (plan.rung == 0 or asked == 0.125)


@given(queues(), queues())
def test_what_is_admitted_keeps_the_caps_and_what_is_not_would_break_one(queue, others):
    capped = setting(max_wait=0.1, max_tokens=700, max_rows=15)
    both = [*queue, *others]
    load = Load()
    for one in queue:
        load = load.plus(one, capped)
    wait = sum(capped.seconds(1, one.length, one.lowest) for one in both)
    assume(abs(wait - 0.1) > 1e-9)  # sums in another order may round to either side
    inside = sum(one.length for one in both) <= 700 and len(both) <= 15 and wait <= 0.1
    if inside:
        after = admit(others, load, capped)
        assert (after.rows, after.tokens) == (len(both), sum(one.length for one in both))
    else:
        with pytest.raises(Refusal) as caught:
            admit(others, load, capped)
        seconds = sum(capped.seconds(1, one.length, one.lowest) for one in others)
        tokens = sum(one.length for one in others)
        if tokens > 700 or len(others) > 15 or seconds > 0.1:  # even an empty queue has no room
            assert caught.value.kind == "too-large" and "retry_after_ms" not in caught.value.extras
        else:
            assert caught.value.kind == "queue-full"
            assert caught.value.extras["retry_after_ms"] >= 50


def test_a_refusal_names_the_number_and_the_limit():
    few, narrow, short = setting(max_tokens=100), setting(max_rows=1), setting(max_wait=0.05)
    with pytest.raises(Refusal, match=r"128 tokens would wait, and the limit is 100"):
        admit([row(1)], Load().plus(row(), few), few)
    with pytest.raises(Refusal, match=r"2 rows would wait, and the limit is 1"):
        admit([row(1)], Load().plus(row(), narrow), narrow)
    with pytest.raises(Refusal, match=r"the wait would be 0.1 s, and the limit is 0.05 s"):
        admit([row(1)], Load(9, 0, 0.05), short)
    with pytest.raises(Refusal, match=r"10 texts of 640 tokens, which take 0.1 s, .*: 20000 texts"):
        admit([row(n) for n in range(10)], Load(), short)


@given(queues(most=30, longest=1.0), st.floats(0.0, 3.0))
def test_draining_empties_what_fits_at_the_lowest_levels_by_the_end(queue, now):
    """Late rows too: whatever was due, the end is what counts."""
    least = sum(SETTING.seconds(1, one.length, one.lowest) for one in queue)
    end = now + 1.001 * least
    draining = [drain(one, end) for one in queue]
    served = replay([Arrival(now, one) for one in draining], ladder, setting=SETTING)
    assert all(one.end <= end + 1e-6 for one in served)


def test_lengths_are_padded_to_buckets_and_not_beyond_the_model():
    assert [padded(n, 40) for n in (1, 16, 17, 33, 40)] == [16, 16, 32, 40, 40]
    assert Affine().milliseconds(rows=1, length=64, level=1.0) == pytest.approx(33.6)
