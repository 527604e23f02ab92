"""Tuning: budgets of a converted model learn the whole model's answers, from texts alone."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from pretrained import tokenizer, write_classifier
from texts import CLUES, rows
from transformers import AutoModelForSequenceClassification

import apportion
from apportion.data.tokenizer import Tokenizer
from apportion.elastic.checkpoint import weights_digest
from apportion.elastic.conversion import convert
from apportion.elastic.elastic import Elastic
from apportion.elastic.repairing import REPAIRED_AT
from apportion.elastic.vouching import answers_of, apart
from apportion.training import tuning as room
from apportion.training.recipes import recipe
from apportion.training.tuning import shared_out, tune, tuning

LABELS, TEXTS = zip(*rows(900, seed=1), strict=True)
FAST = {"batch_size": 32, "lr": 2e-3}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    home = write_classifier(tmp_path_factory.mktemp("model"), list(CLUES))
    model = AutoModelForSequenceClassification.from_pretrained(home).eval()
    with torch.no_grad():  # large enough that a lost unit is seen
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.dim() == 2 else 1.0)
    return model


@pytest.fixture
def fast(monkeypatch):
    """A model of random weights is far from its small budgets: steps have to be large."""
    quick = lambda name, **changes: recipe(name, **{**FAST, **changes})  # noqa: E731
    monkeypatch.setattr(room, "recipe", quick)
    monkeypatch.setattr(room, "_MOST_TIMES", 1)  # as many views as are asked for


def seen_by(tuned):
    """What is called with what a conversion gives to its tuning; then it is tuned."""
    calls = []

    def watching(model, task, whole):
        calls.append((model, task, whole))
        return tuned(model, task, whole)

    return calls, watching


def test_budgets_come_nearer_to_the_whole_model_on_texts_that_nobody_saw(whole, fast):
    words = Tokenizer.of(tokenizer(), 20)
    calls, watching = seen_by(tuning(rows=1200))
    made = convert(whole, TEXTS, tokenizer=words, searched=False, repaired=False, tuned=watching)
    ((before, task, teacher),) = calls
    assert weights_digest(teacher) == weights_digest(whole), "it learns from the given model"
    held_out = 900 // 3
    assert len(task.train) == 900 - held_out and len(task.validation) == held_out // 3
    assert not set(task.train.texts) & set(task.validation.texts)
    assert bool((task.train.labels == -1).all()), "no label is known"
    assert made.facts["tuned"]["rows"] == 2 * 600 and made.facts["tuned"]["share"] > 0
    vouching = made.facts["vouched"]["rows"]
    assert vouching == held_out - held_out // 3, "other texts vouch for it"
    rest = words.pad(words.encode([text for _, text in rows(200, seed=7000)]), 20)
    others = replace(task.validation, inputs=rest, labels=torch.full((200,), -1), texts=None)
    made.model.made_for("nested", 0, lowest=0.125)

    def distance(model):
        found = apart(model, others, wanted=answers_of(whole, others), budgets=REPAIRED_AT)
        return sum(root for root, _ in found)

    assert distance(made.model) < 0.95 * distance(before.made_for("nested", 0, lowest=0.125))


@pytest.mark.parametrize(("kept", "share", "asked"), [(0.97, 0.25, 3), (0.98, 1.0, 5)])
def test_the_whole_budget_may_change_few_answers(given, fast, monkeypatch, kept, share, asked):
    model, task, whole = given
    shares = []
    inside = room.apart

    def doubting(between, split, **rest):
        """All come nearer; from half of the way on, the whole budget keeps fewer answers."""
        found = inside(between, split, **rest)
        if rest["budgets"] == (1.0,):
            shares.append(len(shares))
        return [(0.1 / len(shares), kept if len(shares) > 2 else 1.0) for _ in found]

    monkeypatch.setattr(room, "apart", doubting)
    made, facts = tune(model, task, whole, rows=256)
    assert facts["tuned"]["share"] == share and len(shares) == asked, "none, a quarter, half, …"
    assert weights_digest(made) != weights_digest(model)


@pytest.fixture(scope="module")
def given(whole):
    """What a conversion hands to its tuning."""
    calls, watching = seen_by(lambda model, task, whole: (model, {}))
    words = Tokenizer.of(tokenizer(), 20)
    convert(whole, TEXTS, tokenizer=words, searched=False, repaired=False, tuned=watching)
    return calls[0]


def test_what_brings_held_out_texts_no_nearer_is_not_kept(given, monkeypatch):
    model, task, whole = given
    before = weights_digest(model)
    monkeypatch.setattr(room, "_MOST_TIMES", 1)
    wild = lambda name, **changes: recipe(name, **{**FAST, **changes, "lr": 1.0})  # noqa: E731
    monkeypatch.setattr(room, "recipe", wild)
    made, facts = tune(model, task, whole, rows=300)
    told = facts["tuned"]
    assert told["after"] == told["before"] and told["share"] == 0.0
    assert made is model and weights_digest(model) == before


def test_labels_are_not_looked_at(given, fast):
    model, task, whole = given
    known = replace(
        task,
        train=replace(task.train, labels=torch.randint(3, (len(task.train),))),
        validation=replace(task.validation, labels=torch.randint(3, (len(task.validation),))),
    )
    first, second = (tune(model, one, whole, rows=1200)[0] for one in (task, known))
    assert weights_digest(first) == weights_digest(second) != weights_digest(model)


def test_texts_without_labels_are_learned_from_too(given, fast, monkeypatch):
    model, task, whole = given
    both = replace(task, unlabelled=task.train.take(torch.arange(100)))
    seen = []
    inside = room.fit
    monkeypatch.setattr(
        room, "fit", lambda model, task, **rest: seen.append(task) or inside(model, task, **rest)
    )
    _, facts = tune(model, both, whole, rows=650)
    assert [len(seen[0].train), len(seen[0].unlabelled)] == [600, 50]
    assert facts["tuned"]["rows"] == 650
    assert torch.equal(
        seen[0].validation.labels,
        torch.cat(
            [
                whole(**task.validation.batch(torch.tensor([n]))[0]).logits.argmax(-1)
                for n in range(len(task.validation))
            ]
        ),
    ), "agreement with the whole model is what the bar shows"


def test_few_texts_are_shown_in_many_views(given, fast):
    model, task, whole = given
    few = replace(task, train=task.train.take(torch.arange(30)))
    _, facts = tune(model, few, whole, rows=4000)
    assert facts["tuned"]["rows"] == 20 * 30


def test_short_texts_are_shown_more_often(given, fast, monkeypatch):
    model, task, whole = given
    monkeypatch.setattr(room, "_MOST_TIMES", 4)
    some = task.train.take(torch.arange(100))
    for tokens, times in ((64, 1), (32, 2), (8, 4)):
        longer = SimpleNamespace(lengths=torch.full((100,), tokens))
        assert room._times_as_many(longer) == times
    assert float(some.lengths.float().mean()) < 16
    _, facts = tune(model, replace(task, train=some), whole, rows=300)
    assert facts["tuned"]["rows"] == 4 * 300


def test_the_whole_budget_regains_what_it_lost_before_it_is_judged(given, fast, monkeypatch):
    model, task, whole = given
    calls = []
    inside = room.regain

    def watching(learned, split, **rest):
        calls.append((learned, split, rest["whole"], inside(learned, split, **rest)))
        return calls[-1][-1]

    monkeypatch.setattr(room, "regain", watching)
    between = []
    mixing = room._between
    monkeypatch.setattr(
        room, "_between", lambda model, to, share: between.append(to) or mixing(model, to, share)
    )
    tune(model, task, whole, rows=300)
    ((learned, split, teacher, regained),) = calls
    assert weights_digest(learned) not in {weights_digest(model), weights_digest(regained)}
    assert teacher is whole and set(split.texts) <= set(task.train.texts)
    assert between and all(one is regained for one in between)


def test_time_bounds_the_views(given, fast, monkeypatch):
    model, task, whole = given
    monkeypatch.setattr(room, "_seconds_per_row", lambda whole, split: 0.01)
    chosen = []
    inside = room.apart
    monkeypatch.setattr(
        room,
        "apart",
        lambda model, split, **rest: chosen.append(split) or inside(model, split, **rest),
    )
    rows, fewest = 300, room._FEWEST_CHOOSING
    assert len(task.validation) > fewest
    passes = room._PASSES * rows + room._CHOOSING_PASSES * fewest
    _, facts = tune(model, task, whole, seconds=0.01 * passes)
    assert facts["tuned"]["rows"] == pytest.approx(rows, abs=1)
    assert {len(split) for split in chosen} == {fewest}, "what chooses takes time, too"
    same, facts = tune(model, task, whole, seconds=0.01 * room._PASSES * 100)
    assert same is model and facts == {"tuned": {"rows": 0}}, "too little to be worth its while"


def test_time_is_shared_out():
    assert shared_out(None, tuned=True) == (None, None)
    assert shared_out(60.0, tuned=False) == (60.0, None)
    ordering, learning = shared_out(60.0, tuned=True)
    assert ordering + learning == 60.0 and min(ordering, learning) > 0


def test_rows_without_words_and_orders_that_are_not_one_are_refused(given, whole):
    model, task, _ = given
    with pytest.raises(ValueError, match="texts and their tokenizer"):
        tune(model, replace(task, words=None), whole)
    with pytest.raises(ValueError, match="nested=True"):
        apportion.convert(whole, task, nested=False, tuned=apportion.tuning())
    with pytest.raises(ValueError, match="seconds"):
        tuning(seconds=-1.0)


def test_the_tuned_model_is_a_nested_one_of_the_same_order(given, fast):
    model, task, whole = given
    made, _ = tune(model, task, whole, rows=256)
    assert isinstance(made, Elastic) and made.form == "nested"
    assert torch.equal(made.gates.order, model.gates.order)
