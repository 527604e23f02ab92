"""A little of what `make torture` does at length."""

from __future__ import annotations

from torture import BAD, GOOD, run


def test_a_damaged_folder_is_refused_in_one_sentence_or_fits_together():
    tally = run(tries=150, commands=0, seed=11, limit=60.0)
    assert tally.problems == []
    assert sum(tally.counts.values()) == 150
    assert {outcome for _, outcome in tally.counts} == set(GOOD)
    assert not set(GOOD) & set(BAD)
