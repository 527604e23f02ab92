"""Giving up: as few as can be, and those that are kept are on time."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from virtual import row, setting

from apportion.serving.server.giving_up import given_up
from apportion.serving.server.policy import ladder
from apportion.serving.server.replay import Arrival, replay

JOBS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 30)), max_size=7)


def all_on_time(jobs, start=0):
    end = start
    for work, due in sorted(jobs, key=lambda job: job[1]):
        end += work
        if end > due:
            return False
    return True


def lost(jobs, start=0):
    work, due = np.array(jobs, float).reshape(-1, 2).T
    return given_up(float(start), work, due).tolist()


@given(JOBS, st.integers(0, 9))
def test_what_is_kept_is_on_time_and_no_choice_keeps_more(jobs, start):
    gone = lost(jobs, start)
    assert len(set(gone)) == len(gone)
    assert all_on_time([job for n, job in enumerate(jobs) if n not in gone], start)
    most = max(
        size
        for size in range(len(jobs) + 1)
        if any(all_on_time(chosen, start) for chosen in combinations(jobs, size))
    )
    assert len(jobs) - len(gone) == most


def test_of_two_that_do_not_fit_the_longer_one_is_given_up():
    assert lost([(9, 10), (2, 10)]) == [0]


def burst(count):
    """Requests of four rows of several lengths, all at once."""
    lengths = (16, 64, 64, 128)
    return [
        Arrival(0.0, row(4 * n + k, length=lengths[k], due=0.2, latest=60.0, request=n))
        for n in range(count)
        for k in range(4)
    ]


def ended_whole(served, count):
    by_request = [served[4 * n : 4 * n + 4] for n in range(count)]
    return sum(all(one.on_time for one in rows) for rows in by_request)


def test_a_burst_ends_nearly_as_many_requests_as_one_who_takes_them_in_turn_could():
    quiet = setting(max_batch=8, max_wait=60.0)
    count, level = 24, 0.125
    takes = sum(quiet.seconds(8, length, level) / 8 for length in (16, 64, 64, 128))
    could = int(0.2 / takes)
    assert could < count  # or nothing would have to be given up
    served = replay(burst(count), ladder, setting=quiet)
    assert ended_whole(served, count) >= 0.8 * could


def test_a_request_that_is_given_up_waits_for_those_that_can_be_in_time():
    quiet = setting(max_batch=8, max_wait=60.0)
    queue = [one.row for one in burst(24)]
    plan = ladder(0.0, queue, [], quiet)
    # In the order of numbers: the last ones are given up, and lengths alone do not bring them back.
    assert max(queue[place].request for place in plan.rows) < 12


def test_where_all_fit_nobody_is_given_up():
    alone = setting(max_batch=8, max_wait=60.0)
    served = replay(burst(2), ladder, setting=alone)
    assert ended_whole(served, 2) == 2
