"""Pairs of width and length: monotone in both, no dearer than the budget, kept with the model."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from support.architectures import from_transformers
from support.shortened import UNITS, frontier, shortened, texts
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from apportion.data.task import Split
from apportion.elastic.checkpoint import Checkpoint, load, save
from apportion.elastic.description import describe
from apportion.elastic.elastic import Elastic, logits_of
from apportion.elastic.evaluation import evaluate, sweep
from apportion.elastic.pairing import _Measuring, _Pairs, default_frontier, find_frontier
from apportion.elastic.repairing import repair
from apportion.elastic.searching import search
from apportion.method.frontier import Frontier
from apportion.method.length import Schedule
from apportion.models.compute import count_macs

BUDGETS = (0.25, 0.5, 0.75)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    made = Elastic(from_transformers("bert", "sdpa"), UNITS, length=64, block=32, first_token=True)
    return made.nested().made_for("nested", lowest=0.25).eval()


@pytest.fixture(scope="module")
def rows():
    return Split(texts(), torch.tensor([0, 1, 2, 0]))


@pytest.mark.parametrize("axis", ["length", "both"])
def test_a_rule_shares_each_budget_between_width_and_length(model, axis):
    made = default_frontier(model, axis, budgets=BUDGETS)
    assert made.budgets == (*BUDGETS, 1.0)
    whole = model.around(model.plain()).nested().made_for("nested", lowest=0.25)
    for budget in BUDGETS:
        cost = whole.shortened(made).allocation(budget).cost
        assert 0.8 * budget < cost <= budget + 0.005
    if axis == "length":
        assert set(made.widths) == {1.0}
    else:
        assert made.widths[0] > 0.25


def test_a_budget_that_length_can_not_reach_is_refused(model):
    with pytest.raises(ValueError, match=r"costs as little as 0\.05 at 64 tokens"):
        default_frontier(model, "length", budgets=(0.05,))


@pytest.mark.parametrize("axis", ["width", "depth"])
def test_an_axis_without_length_has_no_frontier(model, axis):
    with pytest.raises(ValueError, match="axis"):
        default_frontier(model, axis)


def test_measuring_finds_pairs_that_no_smaller_budget_beats(model, rows):
    made, facts = find_frontier(model, rows, budgets=(0.3, 0.6))
    assert model.frontier is None
    for budget in (0.3, 0.6):
        assert made.allocation(budget).cost <= budget + 0.05
    assert facts["frontier_rows"] == 4
    assert facts["frontier"] == json.loads(json.dumps(made.frontier.to_dict()["points"]))
    assert set(facts["frontier_apart"]) == {"0.3", "0.6"}
    # No schedule at all is among the pairs that were tried.
    width_alone = evaluate(model, rows, budget=0.6, form="cut")
    assert width_alone.cost <= 0.65


@pytest.fixture(scope="module")
def deep():
    """Six layers: a schedule can fall steeply, and the next budget's must stay below it."""
    torch.manual_seed(0)
    plain = from_transformers("bert", "sdpa", num_hidden_layers=6, max_position_embeddings=512)
    made = Elastic(plain, UNITS, length=512, block=32, first_token=True)
    return made.nested().made_for("nested", lowest=0.125).eval()


def test_whatever_length_takes_at_one_budget_leaves_something_at_the_next(deep):
    pairs = _Pairs(deep, "length")
    taken = {Schedule.everything(6)}
    for budget in (0.75, 0.5, 0.375):
        left = [
            [schedule for _, schedule in pairs.at(budget, widest=1.0, longest=one)] for one in taken
        ]
        assert all(left)
        assert all(
            pairs.cost(1.0, schedule) <= budget + 0.005 for found in left for schedule in found
        )
        taken = {schedule for found in left for schedule in found}


@pytest.mark.parametrize("steepest", [False, True])
def test_measuring_finds_lengths_alone(deep, rows, steepest, monkeypatch):
    if steepest:  # is taken, whatever its answers are

        def drop(_, width, schedule, *__):
            return schedule.shares[-1] - schedule.shares[0]

        monkeypatch.setattr(_Measuring, "apart", drop)
    made, facts = find_frontier(deep, rows, axis="length", budgets=(0.375, 0.5, 0.75))
    assert set(made.frontier.widths) == {1.0}
    for budget in (0.375, 0.5, 0.75):
        assert 0.8 * budget < made.allocation(budget).cost <= budget + 0.005
    assert facts["frontier_rows"] == len(rows)


@pytest.mark.parametrize("axis", ["length", "both"])
def test_without_a_crop_the_first_layer_reads_everything(deep, rows, axis):
    how = {"budgets": (0.5, 0.75), "crop": False}
    by_rule = default_frontier(deep, axis, **how)
    measured, _ = find_frontier(deep, rows, axis=axis, **how)
    for made in (by_rule, measured.frontier):
        assert {schedule.shares[0] for schedule in made.schedules} == {1.0}
    # A layer of six costs more than an eighth, if it reads all tokens and keeps all units.
    assert default_frontier(deep, "length", budgets=(0.125,)).schedules[0].shares[0] < 1.0
    with pytest.raises(ValueError, match=r"costs as little as 0\.125"):
        default_frontier(deep, "length", budgets=(0.125,), crop=False)


def test_a_model_that_drops_by_position_stays_one(model, rows, tmp_path):
    made, _ = find_frontier(model, rows, axis="length", budgets=(0.5,), by_position=True)
    assert made.frontier.schedules[0].by_position
    assert made.allocation(0.7).schedule.by_position  # between two of its points
    save(Checkpoint(made), tmp_path / "made")
    loaded = load(tmp_path / "made")
    assert loaded.elastic.frontier == made.frontier
    smaller = loaded.cut(0.5)
    save(smaller, tmp_path / "cut")
    again = load(tmp_path / "cut")
    assert again.kept == smaller.kept and again.kept.schedule.by_position
    auto = AutoModelForSequenceClassification.from_pretrained(tmp_path / "cut").eval()
    wanted = logits_of(made(**texts(), budget=0.5)).detach()
    for one in (smaller.model.eval(), again.model, auto):
        found = logits_of(one(**texts())).detach()
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    otherwise = made.shortened(
        Frontier(
            (0.5, 1.0),
            (1.0, 1.0),
            (Schedule(made.frontier.schedules[0].shares), Schedule.everything(3)),
        )
    )
    other = logits_of(otherwise(**texts(), budget=0.5)).detach()
    assert not torch.allclose(other, wanted, atol=1e-3)


def test_measured_pairs_are_nearer_than_width_alone(model, rows):
    """Or as near: width alone is one of the pairs."""
    _, facts = find_frontier(model, rows, budgets=(0.6,))
    wanted = logits_of(model.served()(**rows.inputs)).detach()
    alone = logits_of(model(**rows.inputs, budget=0.6)).detach()
    apart = float(rows.criterion.divergence(alone, wanted))
    assert facts["frontier_apart"]["0.6"] <= apart + 1e-4


def test_a_checkpoint_keeps_its_frontier(tmp_path):
    torch.manual_seed(0)
    made = shortened(from_transformers("bert", "sdpa"))
    save(made, tmp_path / "made")
    loaded = load(tmp_path / "made").elastic
    assert loaded.frontier == made.frontier
    for budget in (0.2, 0.6, 1.0):
        assert loaded.allocation(budget) == made.allocation(budget)
        with torch.no_grad():
            mine, theirs = (logits_of(m(**texts(), budget=budget)) for m in (made, loaded))
        assert torch.equal(mine, theirs)
    assert describe(load(tmp_path / "made"), [0.25])["budgets"][0]["shares"] == list(
        made.frontier.schedules[0].shares
    )


def test_without_a_frontier_a_checkpoint_says_nothing_of_it(tmp_path):
    made = shortened(from_transformers("bert", "sdpa")).shortened(None)
    save(made, tmp_path / "made")
    manifest = json.loads((tmp_path / "made" / "apportion.json").read_text())
    assert "frontier" not in manifest["elastic"]
    assert load(tmp_path / "made").elastic.frontier is None


@pytest.mark.parametrize(
    "damage",
    [
        {"points": []},
        {"points": [[0.5, 0.5, [1.0, 0.9, 0.8]]]},
        {"points": [[1.0, 1.0, [1.0, 1.0]]]},
        {"points": [[0.5, 0.9, [0.8, 0.9, 1.0]], [1.0, 1.0, [1.0, 1.0, 1.0]]]},
        [1, 2],
    ],
)
def test_a_damaged_frontier_is_refused(tmp_path, damage):
    save(shortened(from_transformers("bert", "sdpa")), tmp_path / "made")
    file = tmp_path / "made" / "apportion.json"
    manifest = json.loads(file.read_text())
    manifest["elastic"]["frontier"] = damage
    file.write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="can't be right"):
        load(tmp_path / "made")


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_a_cut_model_carries_its_schedule_and_reloads(tmp_path, family):
    torch.manual_seed(0)
    made = shortened(from_transformers(family, "sdpa"))
    smaller = Checkpoint(made).cut(0.25)
    assert smaller.kept.schedule == made.frontier.schedules[0]
    save(smaller, tmp_path / "cut")
    wanted = logits_of(smaller.model.eval()(**texts())).detach()
    loaded = load(tmp_path / "cut")
    assert loaded.kept == smaller.kept
    assert count_macs(loaded.model, 14) == count_macs(smaller.model, 14)
    auto = AutoModelForSequenceClassification.from_pretrained(tmp_path / "cut").eval()
    for model in (loaded.model, auto):
        torch.testing.assert_close(logits_of(model(**texts())).detach(), wanted)
    config = json.loads((tmp_path / "cut" / "config.json").read_text())
    assert config["apportion"]["shares"] == list(made.frontier.schedules[0].shares)


@pytest.mark.parametrize("head", [AutoModel, AutoModelForTokenClassification])
@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_a_cut_model_that_drops_tokens_reloads_for_sequences_alone(tmp_path, family, head):
    """Anything else would get fewer tokens than it gave, in another order."""
    made = shortened(from_transformers(family, "sdpa"))
    made.cut(0.25).save_pretrained(tmp_path / "cut")
    with pytest.raises(ValueError, match=r"drops tokens.*for sequence classification"):
        head.from_pretrained(tmp_path / "cut")
    made.shortened(None).cut(0.25).save_pretrained(tmp_path / "whole")
    head.from_pretrained(tmp_path / "whole")


def test_a_folder_of_transformers_alone_keeps_the_schedule(tmp_path):
    made = shortened(from_transformers("bert", "sdpa"))
    smaller = made.cut(0.25).eval()
    smaller.save_pretrained(tmp_path / "cut")
    loaded = load(tmp_path / "cut")
    assert loaded.kept.schedule == made.frontier.schedules[0]
    torch.testing.assert_close(loaded.model(**texts()).logits, smaller(**texts()).logits)


WITHOUT_APPORTION = """
import sys
sys.modules["apportion"] = None
import torch, transformers
from safetensors.torch import load_file
home = sys.argv[1]
given = load_file(home + "/expected.safetensors")
wanted = given.pop("logits")
auto = transformers.AutoModelForSequenceClassification
model = auto.from_pretrained(home + "/cut", trust_remote_code=True).eval()
with torch.no_grad():
    assert torch.equal(model(**given).logits, wanted)
"""


@pytest.mark.slow
def test_a_cut_model_drops_tokens_where_apportion_is_not_installed(tmp_path):
    smaller = Checkpoint(shortened(from_transformers("bert", "sdpa"))).cut(0.25)
    save(smaller, tmp_path / "cut", self_contained=True)
    with torch.no_grad():
        logits = smaller.model.eval()(**texts()).logits
    save_file({**texts(), "logits": logits}, tmp_path / "expected.safetensors")
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "code"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", WITHOUT_APPORTION, str(tmp_path)]
    subprocess.run(command, check=True, env=environment)


def test_a_config_with_shares_for_other_layers_is_refused(tmp_path):
    shortened(from_transformers("bert", "sdpa")).cut(0.25).save_pretrained(tmp_path / "cut")
    file = tmp_path / "cut" / "config.json"
    config = json.loads(file.read_text())
    config["apportion"]["shares"] = [1.0, 0.5]
    file.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="2 shares of tokens for 3 layers"):
        load(tmp_path / "cut")


def test_sweeps_measure_and_pay_for_the_tokens_that_are_read(rows):
    made = shortened(from_transformers("bert", "sdpa"))
    points = sweep(made, rows, budgets=(0.25, 0.5, 1.0))
    assert [point.outcome.cost for point in points] == [
        made.allocation(budget).cost for budget in (0.25, 0.5, 1.0)
    ]
    assert evaluate(made, rows, budget=0.5, form="hard").cost == points[1].outcome.cost


@pytest.mark.parametrize("step", [repair, search])
def test_what_budgets_keep_is_settled_before_the_frontier(step, rows):
    made = shortened(from_transformers("bert", "sdpa"))
    with pytest.raises(ValueError, match="before its frontier"):
        step(made, rows)
    assert made.frontier == frontier()
