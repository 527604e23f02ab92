"""Pages show which words of some test texts are read at each budget."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from nested_texts import nested_checkpoint
from pretrained import write_pretrained
from shortened import frontier
from test_own_run import made_up

from apportion.elastic.description import trace_pieces, trace_tokens
from apportion.study import measuring, own_run, records
from apportion.study.experiment import parse_experiment, task_of
from apportion.study.report.page import render
from apportion.study.report.run_page import write_run_page
from apportion.study.report.word_view import word_views
from apportion.study.word_records import WordsRecord, words_read

TEXT = "  Goal! the <b>bank</b> " + " ".join(str(n % 10) for n in range(40)) + " end"
NAMES = {"stage": "s", "method": "both", "data_seed": 1, "seed": 7, "only": None}
PIECES = ["One", " <i>two</i>", " & three", "; four"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    made = nested_checkpoint(tmp_path_factory.mktemp("words"))
    made.model.shortened(frontier(made.model.units.layers))
    return made


def line(**changes):
    read = {"0.25": [2, 0, 0, 2], "1": [2, 2, 2, 2]}
    values = {**NAMES, "weights": "w", "layers": 2, "pieces": PIECES, "read": read, **changes}
    return WordsRecord(**values).to_dict()


def test_pieces_are_the_text_and_are_read_as_their_tokens(checkpoint):
    pieces, read = trace_pieces(checkpoint, TEXT, budgets=(0.25, 1.0))
    assert "".join(pieces) == TEXT
    tokens = trace_tokens(checkpoint, TEXT, budget=0.25)[1:-1]  # without the marks
    assert read["0.25"] == [*(token["layers"] for token in tokens), 0]
    assert set(read["1"][:-1]) == {2} and read["1"][-1] == 0
    assert pieces[-1].endswith("end") and 0 < sum(n == 2 for n in read["0.25"]) < len(tokens)


def test_what_a_tail_leaves_out_is_read_by_no_layer(checkpoint):
    ends = replace(checkpoint, words=checkpoint.words.with_tail(5))
    pieces, read = trace_pieces(ends, TEXT, budgets=(1.0,))
    assert "".join(pieces) == TEXT and read["1"].count(0) == 1
    assert 0 < read["1"].index(0) < len(pieces) - 1 and read["1"][-1] == 2


def test_a_stage_notes_words_only_where_tokens_are_dropped(checkpoint):
    class Asked:
        names = NAMES
        budgets = (0.25, 1.0)
        answers = False

    class Shared(Asked):
        answers = True

    task = task_of(checkpoint.notes["task"]).build(checkpoint.words)
    made = words_read(Asked(), checkpoint, task, weights="w")
    assert ["".join(one.pieces) for one in made] == list(task.test.texts[:3])
    assert [list(one.read) for one in made] == [["0.25", "1"]] * 3
    assert all(records.record_of(one.to_dict()) == one for one in made)
    whole = copy.deepcopy(checkpoint.model).shortened(None)
    assert words_read(Asked(), replace(checkpoint, model=whole), task, weights="w") == []
    assert words_read(Shared(), checkpoint, task, weights="w") == []


def test_a_page_marks_what_is_kept_and_escapes_what_people_wrote():
    html = render_words([line()])
    small = html.split("budget 0.25", 1)[1]
    assert "50 % of the tokens reach the last layer" in small
    assert "<mark>One</mark> <span" in small and "<mark>; four</mark>" in small
    grey = re.search(r'<span class="dropped" title="read by 0 of 2 layers">(.*?)</span>', small)
    assert grey and grey[1] == "&lt;i&gt;two&lt;/i&gt; &amp; three"
    assert "<i>two" not in html
    assert html.index("budget 1:") < html.index("budget 0.25:")


def render_words(lines):
    words = word_views(lines)
    traced = {"versions": {"apportion": "0", "torch": "0"}, "python": "3", "time": "now"}
    machine = {"processor": "a processor", "cores": 2}

    class Plan:
        title = "A study"
        test_rows = None
        model_words = "a model"
        task = task_of({"kind": "text", "data": "somewhere"})

    last = {**traced, "machine": machine}
    return render("study.html", experiment=Plan, tables=[], pictures=[], words=words, last=last)


def test_without_dropped_tokens_a_page_has_no_such_section():
    assert 'id="words"' not in render_words([])


def test_each_method_shows_the_model_that_was_measured_last():
    older, other = line(stage="old"), line(stage="t", method="length")
    views = word_views([older, line(), line(), other])
    assert [view.method for view in views] == ["both", "length"]


def test_the_colours_can_be_read():
    """WCAG's 4.5:1 for text, on white and on the marks."""
    html = render_words([line()])
    mark = re.search(r"\.reading mark \{ background: (#\w{6})", html)
    grey = re.search(r"\.dropped \{ color: (#\w{6})", html)
    ink = re.search(r"--ink: (#\w{6})", html)
    assert mark and grey and ink
    assert contrast(ink[1], mark[1]) >= 7.0 and contrast(grey[1], "#ffffff") >= 4.5


def contrast(one, other):
    def light(colour):
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    dark, bright = sorted((light(one), light(other)))
    return (bright + 0.05) / (dark + 0.05)


def test_the_page_of_a_run_shows_them_too(tmp_path):
    run = made_up(tmp_path, {0.5: 0.89, 1.0: 0.9})
    run.measured.append(line())
    write_run_page(run, tmp_path / "page.html", title="Mine")
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert 'id="words"' in html and "<mark>One</mark>" in html


def test_a_run_takes_the_words_of_its_own_weights(tmp_path, monkeypatch):
    export = SimpleNamespace(facts={"weights": "w"})
    monkeypatch.setattr(own_run, "is_export", lambda folder: True)
    monkeypatch.setattr(own_run, "Runtime", lambda folder: export)
    measured = {"kind": "run_answers", "weights": "w"}
    records.append(own_run.records_of(tmp_path), measured)
    stage = {"kind": "stage", "weights": "w"}
    records.append(tmp_path / "results" / "experiment.jsonl", line(), line(weights="other"), stage)
    assert own_run.read_run(tmp_path).measured == [line(), measured]


def test_measuring_a_stage_writes_the_words(checkpoint, tmp_path, monkeypatch):
    made = replace(checkpoint, notes={**checkpoint.notes, "training": {}})
    monkeypatch.setattr(measuring, "produce", lambda stage, runs, **_: made)
    text = STUDY.replace("DATA", checkpoint.notes["task"]["data"])
    (stage,) = parse_experiment(text.replace("MODEL", str(write_pretrained(tmp_path)))).stages
    found = [one for one in measuring.run_stage(stage, tmp_path) if one["kind"] == "words"]
    assert len(found) == 3 and list(found[0]["read"]) == ["0.25", "1"]
    assert {(one["stage"], one["method"]) for one in found} == {(stage.key, "dense")}
    assert min(found[0]["read"]["0.25"]) < 2


STUDY = """
name = "words"
budgets = [0.25, 1.0]
[task]
kind = "text"
data = "DATA"
length = 32
train = 40
validation = 20
[model]
pretrained = "MODEL"
[seeds]
data = [7]
optimisation = [7]
[[stage]]
method = "dense"
recipe = "dense"
"""
