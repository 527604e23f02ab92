"""`apportion.convert`: a fine-tuned classifier gets a knob, from Python."""

from __future__ import annotations

import copy

import pytest
import torch
from pretrained import tokenizer, write_classifier
from texts import CLUES, rows
from transformers import BertForSequenceClassification

import apportion
from apportion import Encoder, EncoderConfig, Marked, Scored, Split, Tokenizer

LABELS, TEXTS = zip(*rows(48, seed=1), strict=True)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    home = write_classifier(tmp_path_factory.mktemp("home") / "model", list(CLUES))
    return BertForSequenceClassification.from_pretrained(home)


@pytest.fixture(scope="module")
def task():
    return Marked(length=12, values=4, distractors=2, train=64, validation=32, test=32).build()


@pytest.fixture(scope="module")
def encoder(task):
    torch.manual_seed(3)
    shape = {"layers": 2, "heads": 4, "hidden": 16, "feedforward": 64}
    return Encoder(EncoderConfig(task.vocabulary, task.length, **shape))


def same(first, second) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


@pytest.fixture(scope="module")
def converted(bert):
    before = copy.deepcopy(bert)
    made = apportion.convert(bert, TEXTS, labels=LABELS, tokenizer=tokenizer(), length=20)
    assert same(bert, before), "the given model is left alone"
    return made


def test_plain_texts_with_labels_and_a_tokenizer_are_enough(converted, bert):
    model = converted.model
    assert model.form == "nested" and model.kinds == ("heads", "feedforward")
    assert model.length == 20 and not model.training
    assert len(converted.facts["scores"]) == len(model.units)
    assert converted.facts["repair_rows"] + converted.facts["repair_held_out"] <= len(TEXTS)
    words = Tokenizer.of(tokenizer(), 20)
    inputs = words.pad(words.encode(TEXTS))
    whole = model(**inputs, budget=1.0).logits.argmax(-1)
    agree = (whole == bert.eval()(**inputs).logits.argmax(-1)).float().mean()
    assert float(agree) > 0.9
    assert model.cut(0.5)(**inputs).logits.shape == (len(TEXTS), 3)


def test_labels_are_names_or_numbers_of_the_models_classes(bert):
    numbers = [list(CLUES).index(label) for label in LABELS]

    def scores(labels):
        words = Tokenizer.of(tokenizer(), 20)
        made = apportion.convert(
            bert,
            TEXTS,
            labels=labels,
            tokenizer=words,
            score="squared-gradient",
            repaired=False,
        )
        return made.facts["scores"]

    assert scores(numbers) == scores(LABELS)
    assert scores([(number + 1) % 3 for number in numbers]) != scores(LABELS)


def test_texts_alone_are_enough(converted, bert):
    """Labels decide nothing: neither the order, nor the repair, nor what is vouched for."""
    made = apportion.convert(bert, TEXTS, tokenizer=tokenizer(), length=20)
    assert same(made.model, converted.model)
    assert made.facts["vouched"]["rows"] == converted.facts["vouched"]["rows"] == 8
    with pytest.raises(ValueError, match="'squared-gradient' is of the labels' loss"):
        apportion.convert(bert, TEXTS, tokenizer=tokenizer(), score="squared-gradient")


def test_the_tokenizer_that_is_given_is_left_alone(bert):
    given = tokenizer()
    before = given.backend_tokenizer.to_str()
    apportion.convert(bert, TEXTS, labels=LABELS, tokenizer=given, repaired=False)
    assert given.backend_tokenizer.to_str() == before


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tokenizer": tokenizer(), "labels": LABELS[:5]}, "48 texts have as many .* not 5"),
        ({"labels": LABELS}, "need the model's tokenizer"),
        ({"labels": LABELS, "tokenizer": str}, "a fast tokenizer of Transformers is needed"),
        ({"labels": ["rain"] * 48, "tokenizer": tokenizer()}, "'rain' is none of the model's"),
        ({"labels": [3] * 48, "tokenizer": tokenizer()}, "label 3 is none of .* or 0 to 2"),
        ({"units": "rows"}, "units are one of heads, all, not 'rows'"),
        ({"score": "magic"}, "a score is one of .*, not 'magic'"),
    ],
)
def test_what_is_missing_or_wrong_is_said_in_a_sentence(bert, given, says):
    with pytest.raises(ValueError, match=says):
        apportion.convert(bert, TEXTS, **given)


def test_a_split_holds_out_as_many_rows_as_asked_for(encoder, task):
    made = apportion.convert(encoder, task.train, held_out=16)
    assert made.facts["repair_held_out"] == 8 and made.facts["vouched"]["rows"] == 8
    assert made.facts["repair_rows"] <= 48
    with pytest.raises(ValueError, match="held_out is 1 to 63 of the rows, not 64"):
        apportion.convert(encoder, task.train, held_out=64)


def test_held_out_texts_are_drawn_from_the_whole_file(bert):
    """A file that is sorted by class is as good as any other, and a text counts once."""
    held: list[set[str]] = []

    def remember(elastic, task, whole):
        held.append(set(task.validation.texts) | set(task.train.texts))
        held.append(set(task.validation.texts))
        assert not set(task.validation.texts) & set(task.train.texts)
        return elastic, {}

    order = sorted(range(len(TEXTS)), key=LABELS.__getitem__)
    texts = [TEXTS[place] for place in order] * 2
    apportion.convert(bert, texts, tokenizer=tokenizer(), length=20, tuned=remember)
    classes = {LABELS[TEXTS.index(text)] for text in held[1]}
    assert len(classes) == len(set(LABELS)), "the last third of the file has one class"


def test_a_task_holds_out_its_validation_rows(encoder, task):
    from_task = apportion.convert(encoder, task)
    from_splits = apportion.convert(encoder, task.train, held_out=task.validation)
    assert same(from_task.model, from_splits.model)
    with pytest.raises(ValueError, match="has its own labels"):
        apportion.convert(encoder, task, labels=[0])


def test_scores_may_be_anybodys(encoder, task):
    """Every method is another way to get scores: the last units are kept, because these say so."""

    def later_is_better(elastic):
        return Scored(torch.arange(len(elastic.units), dtype=torch.float64), {"by": "hand"})

    made = apportion.convert(encoder, task, units="heads", score=later_is_better, repaired=False)
    assert made.facts["by"] == "hand" and made.facts["scores"] == [3, 2, 1, 0, 7, 6, 5, 4]
    assert made.model.allocation(0.5).kept == (False,) * 4 + (True,) * 4


def test_gates_may_stay_where_they_are(encoder, task):
    made = apportion.convert(encoder, task, units="heads", nested=False, repaired=False)
    assert made.model.form == "hard" and same(made.model.model, encoder)
    with pytest.raises(ValueError, match="rows are settings of a repair"):
        apportion.convert(encoder, task, repaired=False, rows=3)


def test_progress_names_its_work(encoder, task):
    told: list[tuple[str, int, int]] = []
    apportion.convert(encoder, task, progress=lambda *tick: told.append(tick))
    last = {what: (done, of) for what, done, of in told}
    assert set(last) == {"scoring", "search", "repair"}
    assert last["scoring"] == (6, 6) and last["search"] == (48, 48)


def test_a_model_in_training_is_scored_and_returned_without_dropout(task):
    torch.manual_seed(3)
    config = EncoderConfig(task.vocabulary, task.length, layers=2, heads=4, hidden=16, dropout=0.5)
    model = Encoder(config).train()
    first, second = (apportion.convert(model, task, units="heads") for _ in range(2))
    assert same(first.model, second.model) and model.training and not first.model.training


def test_rows_of_a_split_need_no_texts(encoder, task):
    bare = Split(task.train.inputs, task.train.labels)
    assert apportion.convert(encoder, bare, repaired=False).model.length == task.length
