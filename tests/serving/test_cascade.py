"""A cascade answers each text at the first level that is sure, and a certificate says how sure."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from pools import Cached, pool

from apportion.data.rows import BadRow, Row, read_csv
from apportion.serving.batch.answering import Audited, answer_rows, by_cascade, lines_of_answers
from apportion.serving.batch.routing import Router, read_routing
from apportion.serving.guarantees.cascade import Cascade, Pool, ends_at
from apportion.serving.guarantees.certificate import Certificate, digest
from apportion.serving.guarantees.certifying import certify, texts_needed
from apportion.serving.guarantees.drift import Drift
from apportion.serving.guarantees.file_certifying import certify_file, draw_rows, most_rows


@pytest.fixture(scope="module")
def runtime() -> Cached:
    return Cached(pool(4000, 1))


@pytest.fixture(scope="module")
def certificate(runtime) -> Certificate:
    return certify(runtime, runtime.texts(), disagree_at_most=0.02, seed=3)


def rows_of(runtime: Cached) -> list[Row]:
    return [Row(n + 2, text) for n, text in enumerate(runtime.texts())]


def answered(runtime, answering, rows, chunk=256):
    words, classes = runtime.tokenizer, runtime.classes
    return list(answer_rows(answering, rows, words=words, classes=classes, chunk=chunk))


def test_a_text_ends_at_the_first_level_that_is_sure():
    runtime = Cached(pool(500, 2))
    thresholds = (0.9, 0.7)
    found = Cascade(runtime, thresholds).predict(runtime.texts(), batch=16)
    ends = ends_at(runtime.answers.margins, thresholds)
    for number, (label, likely, level) in enumerate(found):
        place = ends[number]
        assert level == runtime.levels[place]
        assert label == "ab"[runtime.answers.labels[place, number]]
        margin = runtime.answers.margins[place, number]
        assert likely == pytest.approx((1 + margin) / 2, abs=1e-6)
    # What is not sure goes on, and nothing else does.
    asked = list(runtime.asked.values())
    assert asked == [500, int((ends > 0).sum()), int((ends > 1).sum())]


def test_a_margin_at_the_threshold_is_sure():
    margins = np.array([[0.5], [0.9], [1.0]])
    assert ends_at(margins, (0.5, 0.95)).tolist() == [0]
    assert ends_at(margins, (0.51, 0.95)).tolist() == [2]
    assert ends_at(margins, (None, 0.9)).tolist() == [1]


def test_a_level_at_which_none_ends_is_not_computed():
    runtime = Cached(pool(100, 2))
    Cascade(runtime, (None, None)).predict(runtime.texts())
    assert list(runtime.asked.values()) == [0, 0, 100]


def test_a_certificate_says_what_is_true_of_its_cascade(runtime, certificate):
    assert certificate.certified and certificate.rows == 2000 and certificate.tuned_rows == 1000
    assert certificate.bound <= 0.02 and sum(certificate.ends) == pytest.approx(1.0)
    ends = ends_at(runtime.answers.margins, certificate.thresholds)
    differs = runtime.answers.differs()[ends, np.arange(len(runtime.answers))]
    assert differs.mean() <= 0.02
    assert sum(n for n, _ in certificate.by_class.values()) == certificate.disagreements
    assert sum(n for _, n in certificate.by_length.values()) == certificate.rows
    assert [step.certified for step in certificate.path] == sorted(
        (step.certified for step in certificate.path), reverse=True
    )


def test_where_nothing_can_be_certified_the_whole_model_answers():
    draw = np.random.default_rng(0)
    answers = Pool(draw.integers(0, 2, (3, 2000)), draw.random((3, 2000)))
    runtime = Cached(answers)
    made = certify(runtime, runtime.texts())
    assert not made.certified and made.ends[-1] == 1.0 and made.speed == 1.0
    assert {level for _, _, level in Cascade.certified(runtime, made).predict(["row 5"])} == {1.0}


def test_the_same_texts_make_the_same_certificate(runtime, certificate):
    again = certify(runtime, runtime.texts(), disagree_at_most=0.02, seed=3)
    assert again.thresholds == certificate.thresholds and again.path == certificate.path
    assert again.texts == certificate.texts


def test_too_few_texts_are_refused_with_the_number_that_would_do(runtime):
    needed = texts_needed(0.01, 1 - 0.95)
    assert needed - needed // 3 == 299
    with pytest.raises(ValueError, match=f"at least {needed} are needed"):
        certify(runtime, runtime.texts()[: needed - 1])
    assert certify(runtime, runtime.texts()[:needed]).rows == 299


def test_a_text_that_stands_there_twice_counts_once(runtime):
    some = runtime.texts()[:300]
    with pytest.raises(ValueError, match="300 different texts"):
        certify(runtime, [*some, *(text.upper() for text in some)])


@pytest.mark.parametrize("texts", [["a", "b"] * 400, [str(n) for n in range(900)]])
def test_labels_in_place_of_texts_are_refused(runtime, texts):
    with pytest.raises(ValueError, match="the texts are labels, such as"):
        certify(runtime, texts)


def test_a_runtime_without_a_whole_model_is_refused():
    runtime = Cached(pool(10, 2))
    runtime.levels = (0.125, 0.25, 0.5)
    with pytest.raises(ValueError, match=r"highest level is 0\.5"):
        Cascade(runtime, (None, None))
    runtime.levels = (1.0,)
    with pytest.raises(ValueError, match="one level only"):
        certify(runtime, runtime.texts())


def test_answers_that_depend_on_their_batch_are_not_promised():
    runtime = Cached(pool(10, 2))
    runtime.facts = {**runtime.facts, "scales": "dynamic"}
    with pytest.raises(ValueError, match="export with static scales"):
        certify(runtime, runtime.texts())


def test_a_promise_that_needs_few_rows_still_tunes_on_some():
    needed = texts_needed(0.5, 0.5)
    assert needed // 3 == 20


def test_a_certificate_is_read_as_it_was_written(certificate, tmp_path):
    certificate.save(tmp_path / "c.json")
    assert Certificate.load(tmp_path / "c.json") == certificate


@pytest.mark.parametrize("name", ["weights", "levels", "tokenizer", "runtime", "precision"])
def test_a_certificate_of_another_model_is_refused(certificate, runtime, name):
    other = replace(certificate, identity={**certificate.identity, name: "y" * 64})
    with pytest.raises(ValueError, match=f"other {name} .yyyyyyyyyyyy….*certify this folder"):
        Cascade.certified(runtime, other)


def test_a_certificate_of_other_levels_is_refused(certificate, runtime):
    with pytest.raises(ValueError, match=r"of the levels 0\.125, 0\.5, 1, and this folder"):
        Cascade.certified(runtime, replace(certificate, levels=(0.125, 0.5, 1.0)))


def test_an_edited_certificate_is_refused(certificate, tmp_path):
    path = tmp_path / "c.json"
    certificate.save(path)
    values = json.loads(path.read_text())
    values["disagree_at_most"] = 0.001
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match="was edited or is damaged"):
        Certificate.load(path)
    # The digest guards against accidents, not against fraud.
    del values["digest"]
    path.write_text(json.dumps({**values, "digest": digest(values)}))
    assert Certificate.load(path).disagree_at_most == 0.001


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not readable as JSON"),
        ('{"format": "other"}', "is not a certificate"),
        ('{"format": "apportion-certificate", "version": 1}', "was edited or is damaged"),
    ],
)
def test_a_file_that_is_no_certificate_is_refused(tmp_path, text, said):
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(ValueError, match=said):
        Certificate.load(tmp_path / "c.json")
    with pytest.raises(ValueError, match="there is no certificate"):
        Certificate.load(tmp_path / "none.json")


def test_a_stream_is_answered_in_order_and_says_which_budget_answered(runtime, certificate):
    rows: list[Row | BadRow] = [*rows_of(runtime)[:600]]
    rows.insert(300, BadRow(9999, "no text"))
    cascade = Cascade.certified(runtime, certificate)
    found = answered(runtime, by_cascade(cascade), rows, chunk=64)
    assert [one.line for one in found] == [row.line for row in rows]
    assert found[300] == rows[300]
    ends = ends_at(runtime.answers.margins, certificate.thresholds)[:600]
    budgets = [one.budget for one in found if not isinstance(one, BadRow)]
    assert budgets == [runtime.levels[place] for place in ends]
    lines = list(lines_of_answers([found[0]], runtime.classes, "csv"))
    assert lines[0] == "line,label,p(a),p(b),budget\n" and lines[1].endswith(f",{budgets[0]:g}\n")
    (line,) = lines_of_answers([found[0]], runtime.classes, "jsonl")
    assert json.loads(line)["budget"] == budgets[0]


def test_audits_that_differ_too_often_hand_over_to_the_whole_model(certificate):
    good, bad = Cached(pool(4000, 1)), Cached(pool(4000, 9, bad=True))
    rows = rows_of(good)
    for runtime, rings in ((good, False), (bad, True)):
        watch = Drift(disagree_at_most=certificate.disagree_at_most)
        cascade = Cascade(runtime, (0.5, 0.5) if rings else certificate.thresholds)
        found = answered(runtime, Audited(cascade, watch, share=0.2), rows)
        assert watch.alarm is rings and (rings or 600 < watch.audited < 1000)
        assert not rings or {found[-1].budget, found[-2].budget} == {1.0}
        audited = [one.budget for one in found].count(1.0)
        assert audited >= watch.audited


def test_a_file_keeps_the_whole_models_answers_to_the_drawn_rows(runtime):
    count, drawn = draw_rows(iter(rows_of(runtime)), most=most_rows(0.02, 0.05), seed=4)
    assert count == 4000 and len({row.line for row in drawn}) == 3000
    made = certify_file(runtime, drawn, count=count, disagree_at_most=0.02, confidence=0.95, seed=4)
    statement = made.statement
    assert statement.certified and statement.at_most == 80
    assert "At most 80 of the 4,000" in statement.says
    found = answered(runtime, by_cascade(made.cascade, known=made.known), rows_of(runtime))
    labels = runtime.answers.labels
    differing = sum(one.label != "ab"[labels[-1, n]] for n, one in enumerate(found))
    assert differing <= statement.at_most
    kept = [one for one in found if one.line in made.known]
    assert len(kept) == statement.tuned_rows + statement.drawn_rows
    assert all(one.budget == 1.0 for one in kept)


def test_a_small_file_is_answered_whole(runtime):
    count, drawn = draw_rows(iter(rows_of(runtime)[:200]), most=3000, seed=4)
    made = certify_file(runtime, drawn, count=count, disagree_at_most=0.01, confidence=0.95, seed=4)
    assert not made.statement.certified and made.statement.at_most == 0
    assert "too small" in made.statement.says
    assert all(one.budget == 1.0 for one in answered(runtime, by_cascade(made.cascade), drawn))


def test_every_row_is_as_likely_to_be_drawn():
    rows = [Row(n, "") for n in range(40)]
    counts = np.zeros(40)
    for seed in range(2000):
        for row in draw_rows(rows, most=10, seed=seed)[1]:
            counts[row.line] += 1
    assert abs(counts - 500).max() < 100  # five standard errors


ROUTING = """
tag = "topic"
[tags.easy]
budget = 0.125
[tags.law]
certificate = "c.json"
[default]
budget = 0.25
"""


def write_routing(folder, text=ROUTING):
    (folder / "routing.toml").write_text(text)
    return folder / "routing.toml"


def test_rows_go_where_their_tags_lead(runtime, certificate, tmp_path):
    certificate.save(tmp_path / "c.json")
    router = Router(read_routing(write_routing(tmp_path)), runtime)
    tags = ["easy", "law", "other"]
    rows = [Row(n + 2, f"row {n}", tags[n % 3]) for n in range(300)]
    found = list(router.answer(rows, chunk=64))
    assert [one.line for one in found] == [row.line for row in rows]
    assert {one.budget for one in found[::3]} == {0.125}
    assert {one.budget for one in found[2::3]} == {0.25}
    certified = ends_at(runtime.answers.margins, certificate.thresholds)[1:300:3]
    assert [one.budget for one in found[1::3]] == [runtime.levels[n] for n in certified]


def test_a_row_without_a_tag_takes_the_default(runtime, tmp_path):
    rows = list(read_csv(["text,topic\n", "row 1,\n"], "x", ["text"], "topic", blank=True))
    assert rows == [Row(2, "row 1", "")]
    default = read_routing(write_routing(tmp_path, "[default]\nbudget = 0.25\n"))
    (answer,) = Router(default, runtime).answer(rows)
    assert answer.budget == 0.25
    none = read_routing(write_routing(tmp_path, "[tags.easy]\nbudget = 0.5\n"))
    (bad,) = Router(none, runtime).answer(rows)
    assert bad.problem.startswith("the tag '' has no route")


def test_a_tag_without_a_route_or_a_default_is_a_row_that_cant_be_answered(runtime, tmp_path):
    routing = read_routing(write_routing(tmp_path, "[tags.easy]\nbudget = 0.5\n"))
    (good, bad) = Router(routing, runtime).answer([Row(2, "row 1", "easy"), Row(3, "row 2", "x")])
    assert good.label in "ab"
    assert bad == BadRow(3, "the tag 'x' has no route, and there is no default; known: 'easy'")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tags.a]\nbuget = 0.5", "unknown keys buget"),
        ("route = 3", "unknown keys route"),
        ("[tags.a]\nbudget = 2.0", r"budget must be in \(0, 1\], not 2.0"),
        ("[tags.a]\nbudget = 'much'", "budget must be a number or nothing, not 'much'"),
        ("[tags.a]\nbudget = 0.5\nwithin_ms = 3.0", "has budget and within_ms"),
        ("[tags.a]\nwithin_ms = -3.0", "within_ms must be above 0"),
        ("tag = 'a'", "names no route"),
        ("[tags", "not readable as TOML"),
        ("[tags]\na = 3", "must be a table"),
    ],
)
def test_a_routing_file_that_cant_be_right_is_refused(tmp_path, text, said):
    with pytest.raises(ValueError, match=said):
        read_routing(write_routing(tmp_path, text))
    with pytest.raises(ValueError, match="there is no routing file"):
        read_routing(tmp_path / "none.toml")


def test_a_route_that_cant_be_run_is_found_before_the_first_row(runtime, tmp_path):
    routing = read_routing(write_routing(tmp_path, "[tags.a]\ncertificate = 'none.json'"))
    with pytest.raises(ValueError, match="there is no certificate"):
        Router(routing, runtime)
    routing = read_routing(write_routing(tmp_path, "[tags.a]\nfolder = 'none'"))
    with pytest.raises(ValueError, match="there is no folder"):
        Router(routing, runtime)
