"""Head and tail: of a text that is too long, its first and its last tokens are read."""

from __future__ import annotations

from pathlib import Path

import pytest
from pretrained import tokenizer, write_pretrained
from texts import folder

from apportion.data.text import Text
from apportion.data.tokenizer import Tokenizer
from apportion.elastic.checkpoint import Checkpoint, load, save
from apportion.models.hub import load_model
from apportion.study.experiment import parse_experiment, read_experiment
from apportion.study.report.query import dense_points

LONG = " ".join(str(n % 10) for n in range(30))
STUDY = """
name = "ends"
[task]
kind = "text"
data = "DATA"
length = 20
train = 60
validation = 24
test = 15
[model]
pretrained = "MODEL"
[seeds]
data = [7]
optimisation = [7]
[[stage]]
method = "dense"
recipe = "dense"
epochs = 1
[[stage]]
method = "dense-ends"
recipe = "dense"
epochs = 1
task = { length = 10, tail = 7 }
"""


def test_a_long_text_keeps_both_ends_and_a_short_one_all():
    whole = Tokenizer.of(tokenizer(), 64)
    (ids,) = whole.encode([LONG])
    ends = Tokenizer.of(tokenizer(), 12).with_tail(9)
    assert ends.encode([LONG, "1 2 3", ""]) == [
        ids[:3] + ids[-9:],
        *whole.encode(["1 2 3", ""]),
    ]
    first, last = ends.marks
    (kept,) = ends.encode([LONG])
    assert kept[0] == first and kept[-1] == last and len(kept) == ends.length == 12


def test_spans_stand_where_the_tokens_do():
    for words in (Tokenizer.of(tokenizer(), 12), Tokenizer.of(tokenizer(), 12).with_tail(9)):
        (ids,), spans = words.encode([LONG]), words.spans(LONG)
        read = [LONG[start:end] for start, end in spans]
        marked = [token if token.isdigit() else "" for token in words.tokens(ids)]
        assert read == marked and read[0] == read[-1] == ""


def test_a_checkpoint_reads_texts_as_it_was_trained(tmp_path):
    words = Tokenizer.of(tokenizer(), 12).with_tail(9)
    model = load_model(str(write_pretrained(tmp_path / "model")), ("a", "b"), 0)
    save(Checkpoint(model, {"classes": ["a", "b"]}, words=words), tmp_path / "made")
    again = load(tmp_path / "made").words
    assert again is not None and again.tail == 9 and again.encode([LONG]) == words.encode([LONG])


def test_tokenizers_that_read_other_tokens_have_other_digests():
    words = Tokenizer.of(tokenizer(), 12)
    assert words.digest == Tokenizer.of(tokenizer(), 12).digest
    assert len({words.digest, words.with_tail(9).digest, words.with_tail(8).digest}) == 3


@pytest.mark.parametrize("tail", [-1, 12, 1.5, "9", None])
def test_a_tail_leaves_a_token_of_the_start(tail):
    with pytest.raises(ValueError, match="a tail is 0 to 11 tokens"):
        Tokenizer.of(tokenizer(), 12).with_tail(tail)


def test_a_task_without_a_tail_is_the_task_that_it_was():
    assert "tail" not in Text("somewhere").identity()
    assert Text("somewhere", tail=9).identity()["tail"] == 9
    with pytest.raises(ValueError, match="tail must be 1 to 127 of 128 tokens, not 128"):
        Text("somewhere", tail=128)


def study(home, changes=("", "")):
    text = STUDY.replace("DATA", str(folder(home / "data")))
    text = text.replace("MODEL", str(write_pretrained(home / "model")))
    return parse_experiment(text.replace(*changes))


def test_a_stage_may_read_the_same_rows_in_its_own_way(tmp_path):
    dense, ends = study(tmp_path).stages
    assert (dense.task.length, dense.task.tail) == (20, None)
    assert dense.key != ends.key
    all_tokens, some = dense.build_task(), ends.build_task()
    assert some.test.texts == all_tokens.test.texts and some.length == 10
    assert some.words is not None and some.words.tail == 7
    long = int(all_tokens.test.inputs["attention_mask"].sum(dim=1).argmax())
    ids = all_tokens.words.encode([all_tokens.test.texts[long]])[0]
    assert len(ids) > 10
    assert some.test.inputs["input_ids"][long].tolist() == ids[:3] + ids[-7:]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("tail = 7 }", "tail = 10 }"), "tail must be 1 to 9 of 10 tokens"),
        (("tail = 7 }", "train = 7 }"), "unknown keys train; known: length, tail"),
        (("task = {", 'teacher = "dense"\ntask = {'), "reads other tokens of texts"),
    ],
)
def test_what_a_stage_may_not_read_is_one_sentence(tmp_path, change, complaint):
    with pytest.raises(ValueError, match=complaint):
        study(tmp_path, change)


def test_only_a_pretrained_tokenizer_has_a_tail(tmp_path):
    data = folder(tmp_path / "data")
    with pytest.raises(ValueError, match="tail needs the tokenizer of a pretrained model"):
        Text(str(data), tail=9).build()


def test_the_study_of_long_texts_has_what_people_would_do_instead():
    plan = read_experiment(Path(__file__).parents[2] / "experiments" / "imdb-512.toml")
    read = {s.method: (s.task.length, s.task.tail) for s in plan.stages if s.task.length < 512}
    assert read == {
        "dense-256": (256, None),
        "dense-128": (128, None),
        "dense-256-ends": (256, 192),
        "dense-128-ends": (128, 96),
    }
    assert {s.task.seed for s in plan.stages if s.method in read} == {7}
    assert plan.stages_of("tfidf-logistic")


def test_the_level_of_dense_is_not_that_of_models_that_read_less():
    point = {"kind": "point", "form": "dense", "budget": 1.0}
    whole, less = ({**point, "method": m, "stage": m} for m in ("dense", "dense-128"))
    assert dense_points([whole, less]) == [whole]
    assert dense_points([less]) == [less]
