"""What claims make of records: each rule can fail, and what can't fail is counted apart."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from apportion.study.answers import Answers, Said
from apportion.study.claims import Claim
from apportion.study.paper import PaperTable
from apportion.study.report.claim_tables import (
    BY_CONSTRUCTION,
    FAILS,
    HOLDS,
    UNTESTED,
    claim_table,
    count_verdicts,
    goal_table,
    interval_of_mean,
    judge,
    overlap,
    paired_test,
)
from apportion.study.report.gate_tables import gate_tables
from apportion.study.report.query import beside, points_at, select


def cell(method, seed, **more):
    names = {"stage": f"{method}-{seed}", "method": method, "data_seed": seed, "seed": seed}
    return {**names, **more}


def points(method, accuracies, form="hard", budget=0.5, cost=0.5):
    return [
        cell(method, seed, kind="point", form=form, budget=budget, accuracy=accuracy, cost=cost)
        for seed, accuracy in enumerate(accuracies)
    ]


def latencies(method, speedups, form="cut", budget=0.5):
    return [
        cell(
            method,
            seed,
            kind="latency",
            form=form,
            budget=budget,
            speedup=speedup,
            low=speedup - 0.1,
            high=speedup + 0.1,
            bound=1.25,
            machine={"processor": "a processor", "capability": "AVX2"},
        )
        for seed, speedup in enumerate(speedups)
    ]


class Asked:
    """An experiment that asks for three seeds of each method."""

    def stages_of(self, method):
        return [SimpleNamespace(only=None, task=SimpleNamespace(seed=s), seed=s) for s in range(3)]


HAVE = [
    *points("ours", [0.90, 0.92, 0.94]),
    *points("dense", [0.89, 0.90, 0.94], form="dense", budget=1.0),
]
OVER_DENSE = Claim("x", "–", method="ours", budget=0.5, against="dense", at_least=0.5)


def verdict_of(claim, records, **changes):
    return judge(replace(claim, **changes), Asked(), records).verdict


def test_a_claim_holds_or_not_by_the_mean_of_its_differences():
    verdict = judge(OVER_DENSE, Asked(), HAVE)
    assert verdict.verdict == HOLDS
    assert verdict.here == "92.00 ± 2.00 against 91.00 ± 2.65: +1.00 ± 1.00 (n = 3)"
    assert verdict.test == "p = 0.225"  # t = √3 of 1 ± 1, with two degrees of freedom
    assert verdict_of(OVER_DENSE, HAVE, at_least=1.5) == FAILS
    assert verdict_of(OVER_DENSE, HAVE, at_most=0.9) == FAILS
    assert verdict_of(OVER_DENSE, HAVE, against="", statistic="lowest", at_least=91.0) == FAILS


def test_what_was_not_measured_is_not_judged():
    for claim in (replace(OVER_DENSE, method="none"), replace(OVER_DENSE, against="none")):
        verdict = judge(claim, Asked(), HAVE)
        assert verdict.verdict == UNTESTED and "none was measured in 0 of 3 runs" in verdict.here
    verdict = judge(OVER_DENSE, Asked(), HAVE[1:])
    assert verdict.verdict == UNTESTED and "ours was measured in 2 of 3 runs" in verdict.here
    assert judge(Claim("x", "–", untested="no GPU"), Asked(), HAVE).verdict == UNTESTED


def test_seeds_are_paired_and_few_of_them_prove_nothing():
    assert paired_test([(1.0, 2.0), (2.0, 3.0)]) is None
    assert paired_test([(0.1, 0.2), (0.2, 0.3), (0.3, 0.4)]) is None  # no spread to compare with
    assert paired_test([(1.0, 2.0), (2.0, 3.001), (3.0, 4.002)]) < 0.001


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([0.99, 0.55, 0.98], HOLDS),  # one run collapses
        ([0.56, 0.55, 0.58], FAILS),  # not learned by any is not unstable
        ([0.99, 0.99, 0.98], FAILS),
    ],
)
def test_unstable_is_what_some_runs_learn_and_others_do_not(accuracies, expected):
    claim = Claim("x", "–", method="ours", statistic="split", at_least=95.0, at_most=95.0)
    verdict = judge(replace(claim, budget=0.5), Asked(), points("ours", accuracies))
    assert verdict.verdict == expected
    assert "lowest 55.00, highest" in verdict.here or expected == FAILS


@pytest.mark.parametrize(
    ("theirs", "expected", "words"),
    [
        ([0.86, 0.90, 0.94], HOLDS, "an overlap of 4.00"),
        ([0.70, 0.72, 0.74], FAILS, "16.00 apart"),  # 74 is below 90, where ours begins
        ([0.30, 0.86, 0.86], HOLDS, "an overlap of"),  # wide enough to reach
    ],
)
def test_spreads_overlap_or_there_is_a_gap_between_them(theirs, expected, words):
    have = [*points("ours", [0.90, 0.92, 0.94]), *points("theirs", theirs)]
    claim = replace(
        OVER_DENSE,
        statistic="overlap",
        against="theirs",
        against_form="hard",
        against_budget=0.5,
        at_least=0.0,
    )
    verdict = judge(claim, Asked(), have)
    assert verdict.verdict == expected and words in verdict.here


def test_the_overlap_is_the_same_whoever_is_named_first():
    pairs = [(90.0, 58.0), (89.0, 32.0), (88.5, 84.0)]
    assert overlap(pairs) == pytest.approx(overlap([(b, a) for a, b in pairs]))


def test_accuracy_at_a_cost_asks_for_the_cost_too():
    claim = Claim("x", "–", method="ours", budget=0.5, at_least=90.0)
    have = points("ours", [0.90, 0.92, 0.94], cost=0.3034)
    assert verdict_of(claim, have, cost_at_most=0.303) == HOLDS  # compared as shown
    assert verdict_of(claim, have, cost_at_most=0.302) == FAILS
    assert verdict_of(claim, have, cost_at_most=0.303, at_least=93.0) == FAILS
    verdict = judge(replace(claim, cost_at_most=0.303), Asked(), have)
    assert verdict.here == "92.00 ± 2.00, at cost 0.303 ± 0.000 (n = 3)"


FASTER = Claim(
    "x", "–", measure="speedup", method="ours", form="cut", budget=0.5, at_least=-0.1, at_most=0.1
)


def test_speeds_of_different_runs_are_not_compared():
    have = [*latencies("ours", [1.3, 1.3, 1.3]), *latencies("theirs", [1.2, 1.2, 1.2])]
    claim = replace(FASTER, against="theirs", against_form="cut", against_budget=0.5)
    verdict = judge(claim, Asked(), have)
    assert verdict.verdict == UNTESTED
    assert "timed in different runs" in verdict.here and "by MACs 1.25" in verdict.here


@pytest.mark.parametrize(("speed", "expected"), [(1.25, HOLDS), (1.0, FAILS)])
def test_speeds_of_one_run_are_compared(speed, expected):
    have = [*latencies("ours", [1.3] * 3), *latencies("ours", [speed] * 3, form="hard")]
    claim = replace(FASTER, against="ours", against_form="hard", against_budget=0.5)
    assert verdict_of(claim, have) == expected


def test_a_speed_is_shown_with_its_interval_and_processor():
    verdict = judge(replace(FASTER, at_most=1.5), Asked(), latencies("ours", [1.2, 1.3, 1.4]))
    assert verdict.verdict == HOLDS
    assert verdict.here == "1.30 ± 0.10 (1.10 – 1.50), a processor (AVX2) (n = 3)"


def test_what_can_not_fail_is_never_counted_as_holding():
    claim = replace(OVER_DENSE, by_construction="it was set up so")
    verdict = judge(claim, Asked(), HAVE)
    assert verdict.verdict == BY_CONSTRUCTION and verdict.here.endswith("; it was set up so")
    assert verdict_of(claim, HAVE, at_least=1.5) == FAILS  # or a fault would go unseen
    assert verdict_of(claim, HAVE, method="none") == UNTESTED
    table = PaperTable("t", "T", "Table 1", "study", claims=(claim, OVER_DENSE))
    counts = count_verdicts([claim_table(table, Asked(), HAVE)])
    assert (counts[HOLDS], counts[BY_CONSTRUCTION]) == (1, 1)


def test_an_interval_is_of_the_mean_over_seeds():
    low, high = interval_of_mean([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), abs=1e-4)
    assert interval_of_mean([1.0]) is None and interval_of_mean([1.0, 1.0]) is None
    assert judge(OVER_DENSE, Asked(), HAVE).interval == "-1.48 to +3.48"  # of the differences
    lowest = replace(OVER_DENSE, against="", statistic="lowest")
    assert judge(lowest, Asked(), HAVE).interval == "–"  # it is of means


def test_every_seed_has_to_pass_and_the_highest_to_stay_below():
    claim = replace(OVER_DENSE, against="", at_least=None)
    assert verdict_of(claim, HAVE, every_above=89.99) == HOLDS
    assert verdict_of(claim, HAVE, every_above=90.0) == FAILS  # above, not at
    assert verdict_of(claim, HAVE, every_above=89.99, at_least=93.0) == FAILS
    assert verdict_of(claim, HAVE, statistic="highest", at_most=94.0) == HOLDS
    assert verdict_of(claim, HAVE, statistic="highest", at_most=93.99) == FAILS


def test_a_ratio_is_taken_seed_by_seed():
    have = [*latencies("ours", [1.0, 2.0, 4.0]), *latencies("ours", [2.0, 2.0, 2.0], form="hard")]
    claim = replace(FASTER, against="ours", against_form="hard", against_budget=0.5, ratio=True)
    verdict = judge(replace(claim, at_least=1.167, at_most=None), Asked(), have)
    assert verdict.verdict == HOLDS and ": 1.167 ± 0.764, a processor" in verdict.here
    assert verdict_of(claim, have, at_least=1.168, at_most=None) == FAILS


def test_an_average_over_budgets_needs_all_of_them():
    claim = Claim("x", method="ours", over=(0.25, 0.5), at_least=91.0)
    both = [*points("ours", [0.90, 0.92, 0.94]), *points("ours", [0.88, 0.90, 0.92], budget=0.25)]
    assert verdict_of(claim, both) == HOLDS
    assert verdict_of(claim, both, at_least=91.01) == FAILS
    assert verdict_of(claim, both[:-1]) == UNTESTED


def test_speeds_are_of_the_protocol_that_a_claim_names():
    grouped = [{**r, "protocol": "grouped"} for r in latencies("ours", [1.5] * 3)]
    have = [*latencies("ours", [1.2] * 3), *grouped]
    claim = replace(FASTER, at_least=1.5, at_most=None)
    assert verdict_of(claim, have, protocol="grouped") == HOLDS
    assert verdict_of(claim, have) == FAILS
    share = replace(claim, measure="share_by_macs", protocol="grouped", at_least=120.0)
    assert judge(share, Asked(), have).here.startswith("120.0 ± 0.0 (112.00 – 128.00), a processor")


def test_goals_are_claims_and_judged_as_those_of_the_paper():
    study = Asked()
    study.claims = (OVER_DENSE, replace(OVER_DENSE, at_least=1.5), replace(OVER_DENSE, method="no"))
    rows = goal_table(study, HAVE).rows
    assert [row[-1] for row in rows] == ["yes", "no", "not yet"]
    here = judge(OVER_DENSE, study, HAVE).here
    asks = "accuracy of ours hard at 0.50 minus dense ≥ 0.5"
    assert rows[0] == ("x", asks, here, "-1.48 to +3.48", "p = 0.225", "yes")


def test_tables_of_gates_are_of_the_methods_that_have_soft_ones():
    """Even beside others whose units have one order for all budgets."""
    methods = [SimpleNamespace(method=method) for method in ("gated", "nested")]
    study = SimpleNamespace(stages=methods, budgets=(0.25, 0.75))
    learned = ([0.4, 0.3, 0.2, 0.1], [0.9, 0.8, 0.7, 0.6])
    have = [*points("gated", [0.9], form="soft"), *points("nested", [0.9], form="cut")]
    have += [*gates("gated", *learned), *gates("nested", *learned)]
    for table in gate_tables(study, have):
        assert [row[0] for row in table.rows] == ["gated"]


def gates(method, low, high):
    kept = {"layer 0": {"heads": [0, 1]}}
    shown = {0.25: low, 0.75: high}
    return [
        cell(method, seed, kind="gates", budget=budget, z=z, kept=kept)
        for seed in range(3)
        for budget, z in shown.items()
    ]


def scored(method):
    """Stages whose gates began in the order of some scores."""
    return [
        record
        for seed in range(3)
        for record in (
            cell(method, seed, kind="stage", parent=f"scores-{seed}"),
            cell("scores", seed, kind="scores", scores=[4.0, 3.0, 2.0, 1.0]),
        )
    ]


def test_an_order_that_gates_began_with_is_not_a_finding():
    claim = Claim("x", "–", measure="spearman", method="ours", at_least=0.85)
    alike = gates("ours", [0.4, 0.3, 0.2, 0.1], [0.9, 0.8, 0.7, 0.6])
    assert verdict_of(claim, alike) == HOLDS  # from ties
    verdict = judge(claim, Asked(), [*alike, *scored("ours")])
    assert verdict.verdict == BY_CONSTRUCTION
    assert "1.00 ± 0.00 before any training" in verdict.here
    turned = gates("ours", [0.4, 0.3, 0.2, 0.1], [0.6, 0.7, 0.8, 0.9])
    assert verdict_of(claim, turned) == verdict_of(claim, [*turned, *scored("ours")]) == FAILS


def test_a_cut_model_is_not_compared_with_a_mask_that_stands_in_for_it():
    same = Claim("x", "–", method="ours", form="cut", budget=0.5, at_least=0.0, at_most=0.0)
    claim = replace(same, against="ours", against_form="hard", against_budget=0.5)
    masked = points("ours", [0.90, 0.92, 0.94])
    assert verdict_of(claim, masked) == UNTESTED
    assert verdict_of(claim, [*masked, *points("ours", [0.90, 0.92, 0.94], "cut")]) == HOLDS
    assert verdict_of(claim, [*masked, *points("ours", [0.90, 0.92, 0.93], "cut")]) == FAILS


def test_what_was_measured_again_counts_once():
    again = [{**record, "accuracy": 0.5} for record in HAVE[:1]]
    found = select([*HAVE, *again], kind="point", method="ours")
    assert [record["accuracy"] for record in found] == [0.5, 0.92, 0.94]
    other = [{**record, "budget": 0.25} for record in HAVE[:1]]
    assert len(select([*HAVE, *other], kind="point", method="ours")) == 4


def test_cutting_and_skipping_have_the_accuracy_of_the_hard_mask():
    assert points_at(HAVE, "ours", "skip", 0.5) == points_at(HAVE, "ours", "cut", 0.5) == HAVE[:3]
    assert beside([89.5, 90.5], "87.6 ± 1.2") == "+2.40"
    assert beside([], "87.6") == beside([1.0], "not printed") == "–"


def answered(method, right, rows="the rows", form="hard", budget=0.5):
    """The answers of three seeds to a thousand rows each, with so many right, and their points."""
    answers = {}
    for seed, count in enumerate(right):
        predicted = (np.arange(1000) < count).astype(np.uint8)
        half = np.full(1000, 0.5, np.float16)
        said = {(form, budget): Said(predicted, half, half)}
        answers[f"{method}-{seed}"] = Answers("m", rows, np.ones(1000, np.uint8), said)
    return points(method, [count / 1000 for count in right], form, budget), answers


def test_what_holds_surely_holds_in_all_of_its_interval():
    """20 of 1,000 rows are ours alone, in each seed: 2 points, 1.2 to 2.9 of them."""
    ours, kept = answered("ours", [920, 921, 919])
    dense, kept_too = answered("dense", [900, 901, 899], form="dense", budget=1.0)
    have, answers = [*ours, *dense], {**kept, **kept_too}
    claim = replace(OVER_DENSE, at_least=1.0, surely=True)
    verdict = judge(claim, Asked(), have, answers=answers)
    low, high = map(float, verdict.interval.split(" to "))
    assert 1.0 < low < 1.4 and 2.6 < high < 3.1
    assert (verdict.verdict, verdict.test) == (HOLDS, "better")
    assert "by seed +2.00, +2.00, +2.00 (n = 3)" in verdict.here

    def with_rows(**changes):
        return judge(replace(claim, **changes), Asked(), have, answers=answers).verdict

    assert with_rows(at_least=1.9) == FAILS and with_rows(at_least=1.9, surely=False) == HOLDS
    assert with_rows(at_least=low) == HOLDS and with_rows(at_least=low + 0.01) == FAILS
    assert with_rows(at_most=high) == HOLDS and with_rows(at_most=high - 0.01) == FAILS
    assert with_rows(every_above=2.0) == FAILS
    part = {stage: one for stage, one in answers.items() if stage != "dense-1"}
    assert judge(claim, Asked(), have, answers=part).verdict == UNTESTED
    by_mean = replace(claim, surely=False)
    assert judge(by_mean, Asked(), have, answers=part) == judge(by_mean, Asked(), have)
    alone = Claim("x", "–", method="ours", budget=0.5, at_least=91.9)
    assert judge(alone, Asked(), have, answers=answers) == judge(alone, Asked(), have)
    _, others = answered("dense", [900, 901, 899], rows="others", form="dense", budget=1.0)
    with pytest.raises(ValueError, match="different test rows"):
        judge(claim, Asked(), have, answers={**kept, **others})


def test_goals_say_how_they_were_judged_by_rows():
    ours, kept = answered("ours", [899, 901, 902])
    dense, kept_too = answered("dense", [900, 901, 899], form="dense", budget=1.0)
    have, answers = [*ours, *dense], {**kept, **kept_too}
    asked = SimpleNamespace(claims=(OVER_DENSE,), stages_of=Asked().stages_of)
    table = goal_table(asked, have, answers=answers)
    assert table.rows[0][-2:] == ("at least as good", "no")
    assert "a word stands in place of the test" in table.note
    assert "a word stands" not in goal_table(asked, have).note
