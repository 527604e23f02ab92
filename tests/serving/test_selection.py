"""One file that drops tokens: it answers as the views do, alone and in a batch, in int8 too."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from architectures import from_transformers
from nested_texts import nested_checkpoint
from shortened import LENGTHS, frontier, shortened, texts
from texts import rows

from apportion.elastic.elastic import logits_of
from apportion.method.frontier import Frontier
from apportion.method.length import Schedule, kept_tokens
from apportion.models.shortening import Shortened
from apportion.serving.runtime import arrays, exporting
from apportion.serving.runtime.exporting import export
from apportion.serving.runtime.graph import build_graph
from apportion.serving.runtime.quantisation import _Watch, calibrate_scales
from apportion.serving.runtime.session import Runtime
from apportion.serving.runtime.skipping import Skipping

LEVELS = (0.25, 0.4, 1.0)
TEXTS = [" ".join(text for _, text in rows(3, seed)) for seed in range(24)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    made = nested_checkpoint(tmp_path_factory.mktemp("selection"))
    made.model.shortened(frontier(made.model.units.layers))
    return made


@pytest.fixture(scope="module")
def folder(checkpoint, tmp_path_factory):
    place = tmp_path_factory.mktemp("exported") / "onnx"
    export(checkpoint, place, texts=TEXTS, levels=LEVELS)
    return place


@pytest.mark.parametrize("family", ["bert", "electra", "roberta", "distilbert"])
def test_the_graph_drops_the_tokens_that_views_drop(family):
    torch.manual_seed(0)
    model = shortened(from_transformers(family, "sdpa"))
    graph = build_graph(model, LEVELS).SerializeToString()
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    given = {name: values.numpy() for name, values in texts().items()}
    if "token_type_ids" in {one.name for one in session.get_inputs()}:
        given["token_type_ids"] = np.zeros_like(given["input_ids"])
    for level in LEVELS:
        found = session.run(None, {**given, "budget": np.array(level, np.float32)})[0]
        with torch.no_grad():
            wanted = logits_of(Skipping(model)(**texts(), budget=level)).numpy()
        np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_a_model_that_drops_by_position_is_not_exported():
    whole = Schedule.everything(3)
    by_position = Schedule((1.0, 0.7, 0.6), by_position=True)
    model = shortened(from_transformers("bert", "sdpa"))
    model.shortened(Frontier((0.25, 1.0), (0.5, 1.0), (by_position, whole)))
    with pytest.raises(ValueError, match=r"by their position.*is not exported"):
        build_graph(model, LEVELS)


def test_without_a_frontier_the_graph_has_no_selection(checkpoint):
    kinds = {node.op_type for node in build_graph(checkpoint.model, LEVELS).graph.node}
    assert "Less" in kinds
    model = shortened(from_transformers("bert", "sdpa")).shortened(None)
    plain = build_graph(model, LEVELS)
    assert not {"Less", "ReduceSum"} & {node.op_type for node in plain.graph.node}


def test_a_file_answers_a_row_alone_as_in_a_batch(folder):
    runtime = Runtime(folder)
    encoded = runtime.tokenizer.encode(TEXTS)
    together = runtime.tokenizer.pad_arrays(encoded)
    for level in LEVELS:
        found = runtime(**together, budget=level)
        for number in (0, 7):
            alone = runtime.tokenizer.pad_arrays(encoded[number : number + 1])
            np.testing.assert_allclose(runtime(**alone, budget=level)[0], found[number], atol=1e-4)


def test_a_manifest_says_what_each_level_reads(folder, checkpoint):
    runtime = Runtime(folder)
    schedule = checkpoint.model.frontier.schedules[0]
    assert runtime.facts["shares"][0] == list(schedule.shares)
    assert runtime.facts["shares"][-1] is None
    assert runtime.costs[0] == pytest.approx(checkpoint.model.allocation(0.25).cost, abs=1e-6)
    assert runtime.facts["checked"]["agreements"] == [1.0] * len(LEVELS)
    assert "If" in {node.op_type for node in onnx.load(folder / "model.onnx").graph.node}


def test_int8_drops_tokens_too(checkpoint, tmp_path):
    facts = export(checkpoint, tmp_path / "onnx", texts=TEXTS, levels=LEVELS, int8=True)
    assert facts["precision"] == "int8"
    assert min(facts["checked"]["agreements"]) > 0.7
    assert max(facts["checked"]["changed"]) <= 0.05


def test_scales_are_taken_from_the_tokens_that_stay_alone(monkeypatch):
    """A row that keeps fewer tokens than its batch mates is filled up: that is no text."""
    torch.manual_seed(0)
    schedules = frontier().schedules[:1] + frontier().schedules[-1:]
    model = shortened(from_transformers("bert", "sdpa"))
    model.shortened(Frontier((0.25, 1.0), (1.0, 1.0), schedules))  # every unit stays
    counted = []
    monkeypatch.setattr(_Watch, "see", lambda _, states, __: counted.append(len(states)))
    calibrate_scales(model, [texts()], levels=(0.25,))
    read = [sum(kept_tokens(count, share) for count in LENGTHS) for share in schedules[0].shares]
    sites = 4  # of a layer: keys, what heads mix, and the two matrices of its feed-forward part
    rows_alone = [len(LENGTHS)] * (sites - 1)  # of the last layer, token 0 is read
    assert counted == [count for count in read[:-1] for _ in range(sites)] + read[-1:] + rows_alone


@pytest.mark.parametrize(("rows", "spared"), [(1, 0), (2, 1), (19, 1), (40, 2), (256, 12)])
def test_a_tie_is_spared_and_never_all_rows(rows, spared):
    assert exporting._spared(rows) == spared


@pytest.mark.parametrize("ties", [1, 2])
def test_one_tie_among_few_texts_does_not_stop_an_export(checkpoint, tmp_path, monkeypatch, ties):
    """Of two tokens that are wanted alike, rounding picks one: the row's answer is another."""

    def on_arrays(view):
        drops = any(isinstance(part, Shortened) for part in view.modules())

        def answer(**inputs):
            found = arrays.on_arrays(view)(**inputs)
            found[:ties] += 0.1 * drops
            return found

        return answer

    monkeypatch.setattr(exporting, "on_arrays", on_arrays)
    if ties == 1:
        export(checkpoint, tmp_path / "onnx", texts=TEXTS[:6], levels=LEVELS)
        return
    with pytest.raises(ValueError, match="the graph answers otherwise"):
        export(checkpoint, tmp_path / "onnx", texts=TEXTS[:6], levels=LEVELS)
