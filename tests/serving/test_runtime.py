"""One ONNX file: it answers as the views do, at every level, alone and in a batch."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from architectures import SHAPES, ask, from_transformers
from commands import run as command
from pretrained import write_classifier
from shortened import frontier
from texts import CLUES, rows
from transformers import AutoConfig, AutoModelForSequenceClassification

from apportion.elastic.checkpoint import Checkpoint, save
from apportion.elastic.elastic import Elastic
from apportion.method.units import Allocation
from apportion.models.hub import tokenizer_of_folder
from apportion.models.reloading import load_folder
from apportion.serving.milliseconds.machine import int8_target
from apportion.serving.runtime.engines import open_session
from apportion.serving.runtime.exporting import export
from apportion.serving.runtime.graph import build_graph
from apportion.serving.runtime.quantisation import calibrate_scales
from apportion.serving.runtime.rounding import (
    Scale,
    Seen,
    choose_scale,
    quantise_columns,
    round_columns,
)
from apportion.serving.runtime.session import Runtime
from apportion.serving.runtime.skeletons import SKELETONS
from apportion.serving.runtime.skipping import Skipping

ALL = ("heads", "feedforward")
LEVELS = (0.125, 0.25, 0.5, 1.0)
TEXTS = [text for _, text in rows(40, 3)]


def nested(name: str, kinds=ALL) -> Elastic:
    torch.manual_seed(4)
    elastic = Elastic(from_transformers(name, "sdpa").eval(), kinds, length=10, block=32).eval()
    made = elastic.nested(torch.rand(len(elastic.units)))
    return made.made_for("nested", 0, lowest=0.125)


def given(elastic: Elastic) -> dict[str, torch.Tensor]:
    ids = torch.randint(2, 20, (5, 10))
    mask = torch.arange(10) < torch.tensor([10, 3, 7, 1, 5])[:, None]
    padding = elastic.model.config.pad_token_id or 0
    return {"input_ids": torch.where(mask, ids, padding), "attention_mask": mask.long()}


def run(model: onnx.ModelProto, inputs: dict[str, torch.Tensor], budget: float) -> np.ndarray:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    feed = {name: values.numpy() for name, values in inputs.items()}
    feed["budget"] = np.array(budget, np.float32)
    if "token_type_ids" in {one.name for one in session.get_inputs()}:
        feed["token_type_ids"] = np.zeros_like(feed["input_ids"])
    return session.run(None, feed)[0]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Checkpoint:
    folder = write_classifier(tmp_path_factory.mktemp("classifier"), sorted(CLUES))
    torch.manual_seed(2)
    elastic = Elastic(load_folder(folder)[0], ALL, length=24, block=32).eval()
    with torch.no_grad():
        for parameter in elastic.model.parameters():
            parameter.mul_(4.0 if parameter.dim() == 2 else 1.0)
    elastic = elastic.nested(torch.rand(len(elastic.units))).made_for("nested", 1, lowest=0.25)
    return Checkpoint(elastic, {"classes": sorted(CLUES)}, words=tokenizer_of_folder(folder))


def test_every_skeleton_is_of_an_architecture_that_has_a_model_here():
    assert set(SKELETONS) <= set(SHAPES)


@pytest.mark.parametrize("kinds", [ALL, ("heads",)], ids="+".join)
@pytest.mark.parametrize("name", sorted(SKELETONS))
def test_the_graph_answers_as_the_views_do_at_every_level(name, kinds):
    elastic = nested(name, kinds)
    inputs, views, model = given(elastic), Skipping(elastic), build_graph(elastic, LEVELS)
    for level in LEVELS:
        with torch.no_grad():
            wanted = ask(views, inputs, budget=level).numpy()
        np.testing.assert_allclose(run(model, inputs, level), wanted, atol=2e-5)


def test_between_two_levels_the_lower_one_is_run():
    elastic = nested("bert")
    model, inputs = build_graph(elastic, LEVELS), given(elastic)
    assert np.array_equal(run(model, inputs, 0.49), run(model, inputs, 0.25))
    assert not np.allclose(run(model, inputs, 0.5), run(model, inputs, 0.25))


def test_layers_that_a_level_empties_leave_their_bias():
    """The order buys the units of the last layer last: small levels have none of them."""
    elastic = Elastic(from_transformers("bert", "sdpa").eval(), ALL, length=10, block=32).eval()
    last = torch.tensor([float(unit.layer == 2) for unit in elastic.units])
    elastic = elastic.nested(torch.rand(len(elastic.units)) - 2 * last + 3).made_for("nested", 0)
    kept = elastic.allocation(0.25)
    assert not kept.indices(2, "heads") and not kept.indices(2, "feedforward")
    inputs, views, model = given(elastic), Skipping(elastic), build_graph(elastic, (0.25, 1.0))
    for level in (0.25, 1.0):
        with torch.no_grad():
            wanted = ask(views, inputs, budget=level).numpy()
        np.testing.assert_allclose(run(model, inputs, level), wanted, atol=2e-5)


@pytest.mark.parametrize("kinds", [ALL, ("heads",)], ids="+".join)
@pytest.mark.parametrize("int8", [False, True])
def test_blocks_of_another_size_are_exported(kinds, int8):
    """Forty neurons a layer: 64, the usual block, does not divide them."""
    shape = {**SHAPES["bert"], "intermediate_size": 40}
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model("bert", **shape))
    block = 8 if "feedforward" in kinds else 64
    elastic = Elastic(model.eval(), kinds, length=10, block=block).eval().nested()
    inputs, views = given(elastic), Skipping(elastic)
    scales = calibrate_scales(elastic, [inputs], (0.5, 1.0), bits=7) if int8 else None
    graph = build_graph(elastic, (0.5, 1.0), scales=scales)
    for level in (0.5, 1.0):
        with torch.no_grad():
            wanted = ask(views, inputs, budget=level).numpy()
        np.testing.assert_allclose(run(graph, inputs, level), wanted, atol=0.05 if int8 else 2e-5)


def test_weights_of_a_block_stand_once():
    elastic = nested("bert")
    one, many = build_graph(elastic, (1.0,)), build_graph(elastic, LEVELS)
    assert many.ByteSize() < 1.2 * one.ByteSize()
    sizes = [np.prod(tensor.dims) for tensor in many.graph.initializer if len(tensor.dims) == 2]
    whole = [p.numel() for p in elastic.model.parameters() if p.dim() == 2]
    assert sum(sizes) == sum(whole)


def test_int8_is_near_single_precision_and_a_row_does_not_know_its_batch():
    elastic = nested("bert")
    inputs = given(elastic)
    scales = calibrate_scales(elastic, [inputs], LEVELS, bits=7)
    model, views = build_graph(elastic, LEVELS, scales=scales), Skipping(elastic)
    for level in LEVELS:
        together = run(model, inputs, level)
        with torch.no_grad():
            wanted = ask(views, inputs, budget=level).numpy()
        assert np.abs(together - wanted).max() < 0.15 * np.abs(wanted).max()
        for row, length in enumerate((10, 3, 7, 1, 5)):
            alone = {name: values[row : row + 1, :length] for name, values in inputs.items()}
            np.testing.assert_allclose(run(model, alone, level)[0], together[row], atol=2e-5)


def test_channels_that_are_equalised_are_so_in_the_graph_too():
    """With factors that nobody would choose, what is divided before is multiplied after."""
    elastic = nested("bert")
    inputs, views = given(elastic), Skipping(elastic)
    scales = calibrate_scales(elastic, [inputs], LEVELS, bits=7)
    for path, scale in scales.items():
        if path.endswith("output.dense") and "attention" not in path:
            continue  # after feed-forward neurons, channels are left as they are
        channels = scale.sample.shape[1]
        factors = np.geomspace(1 / 1.6, 1.6, channels, dtype=np.float32)
        raw = scale.sample * (1.0 if scale.factors is None else scale.factors)
        over = raw / factors
        scales[path] = Scale.of(
            float(over.min()), float(over.max()), 7, factors=factors, sample=over
        )
    model = build_graph(elastic, LEVELS, scales=scales)
    for level in LEVELS:
        with torch.no_grad():
            wanted = ask(views, inputs, budget=level).numpy()
        found = run(model, inputs, level)
        assert np.abs(found - wanted).mean() < 0.2 * np.abs(wanted).mean()


def test_scales_are_taken_at_every_level_and_from_no_padding():
    elastic = nested("bert")
    inputs = given(elastic)
    spoiled = {
        **inputs,
        "input_ids": torch.where(inputs["attention_mask"] > 0, inputs["input_ids"], 19),
    }
    once = calibrate_scales(elastic, [inputs], LEVELS)
    assert calibrate_scales(elastic, [spoiled], LEVELS).keys() == once.keys()
    first = "bert.encoder.layer.0.attention.self.query"
    assert calibrate_scales(elastic, [spoiled], LEVELS)[first] == once[first]
    assert calibrate_scales(elastic, [inputs], (1.0,)) != once


def test_outliers_are_clipped_or_moved_into_the_weight_where_that_is_nearer():
    draw = np.random.default_rng(0)
    sample = draw.normal(size=(256, 16)).astype(np.float32)
    weight = draw.normal(size=(16, 8)).astype(np.float32)
    wide = sample.copy()
    wide[:, 3] *= 100.0  # a channel of outliers, as norms leave them
    even = choose_scale(Seen(wide.min(0), wide.max(0), wide), weight, 8, worth=1.0)
    assert even.choice.startswith("equalised") and even.factors[3] > 3 * even.factors[4]
    never = choose_scale(Seen(wide.min(0), wide.max(0), wide), weight, 8, worth=0.0)
    assert never.factors is None
    rare = np.float32(1e3)  # one token that the sample lacks
    seen = Seen(sample.min(0) - rare, sample.max(0) + rare, sample)
    assert choose_scale(seen, weight, 8, worth=0.0).choice == "99.99 %"
    assert choose_scale(seen, weight, 8, worth=0.0).size < 0.05


def test_equalised_inputs_change_nothing_but_their_rounding():
    draw = np.random.default_rng(1)
    sample = (draw.normal(size=(64, 12)) * np.geomspace(1, 50, 12)).astype(np.float32)
    weight = draw.normal(size=(12, 4)).astype(np.float32)
    scale = choose_scale(Seen(sample.min(0), sample.max(0), sample), weight, 8, worth=1.0)
    matrix, sizes = scale.weights(weight, slice(None))
    given = np.clip(np.rint(sample / scale.factors / scale.size) + scale.zero, 0, 255) - scale.zero
    found = (given * scale.size) @ (matrix * sizes)
    assert np.abs(found - sample @ weight).max() < 0.03 * np.abs(sample @ weight).max()
    np.testing.assert_array_equal(
        scale.weights(weight[4:8], slice(4, 8))[1],
        quantise_columns(weight[4:8] * scale.factors[4:8, None], 8)[1],
    )


def test_weights_are_rounded_for_the_inputs_that_come_together():
    draw = np.random.default_rng(2)
    sample = draw.normal(size=(200, 4)) @ draw.normal(size=(4, 96)) + 0.1 * draw.normal(
        size=(200, 96)
    )
    weight = draw.normal(size=(96, 8)).astype(np.float32)
    nearest, sizes = quantise_columns(weight, 7)
    rounded, same = round_columns(weight, 7, sample.astype(np.float32))
    np.testing.assert_array_equal(sizes, same)
    assert np.abs(rounded).max() <= 63

    def error(matrix):
        return np.square(sample @ (matrix * sizes - weight)).sum()

    assert error(rounded) < 0.5 * error(nearest)
    np.testing.assert_array_equal(round_columns(weight, 7, np.zeros((3, 96)))[0], nearest)
    assert Scale.of(-1.0, 2.0, 7).weights(weight, slice(None))[0].tolist() == nearest.tolist()


def test_columns_have_scales_of_their_own():
    weight = np.array([[1.0, 100.0], [-0.5, 50.0]], np.float32)
    matrix, sizes = quantise_columns(weight, 8)
    assert matrix.tolist() == [[127, 127], [-64, 64]]
    assert quantise_columns(weight, 7)[0].max() == 63
    np.testing.assert_allclose(matrix * sizes, weight, rtol=0.01)


@pytest.mark.parametrize("int8", [False, True])
def test_an_exported_folder_answers_texts(checkpoint, tmp_path, int8):
    facts = export(checkpoint, tmp_path / "out", texts=TEXTS, int8=int8)
    assert facts["levels"] == [0.25, 0.375, 0.5, 0.75, 1.0]
    assert facts["costs"] == sorted(facts["costs"]) and facts["costs"][-1] == 1.0
    assert facts["target"] == (int8_target() if int8 else None)
    runtime = Runtime(tmp_path / "out")
    views = Skipping(checkpoint.model)
    for level in (0.25, 1.0):
        found = runtime.predict(TEXTS, budget=level)
        inputs = checkpoint.words.pad(checkpoint.words.encode(TEXTS))
        with torch.no_grad():
            wanted = ask(views, inputs, budget=level).softmax(-1)
        if int8:
            assert (
                np.mean(
                    [
                        n == checkpoint.classes[i]
                        for (n, _), i in zip(found, wanted.argmax(-1), strict=True)
                    ]
                )
                > 0.8
            )
        else:
            assert [name for name, _ in found] == [checkpoint.classes[i] for i in wanted.argmax(-1)]
            np.testing.assert_allclose([p for _, p in found], wanted.amax(-1), atol=1e-4)


def test_a_budget_below_the_lowest_level_is_refused(checkpoint, tmp_path):
    export(checkpoint, tmp_path / "out", levels=[0.5, 1.0])
    runtime = Runtime(tmp_path / "out")
    assert runtime.levels == (0.5, 1.0) and runtime.level_of(0.99) == 0.5
    with pytest.raises(ValueError, match=r"below the lowest level of this file, 0\.5"):
        runtime.predict(TEXTS, budget=0.4)
    with pytest.raises(ValueError, match=r"in \(0, 1\]"):
        runtime.predict(TEXTS, budget=1.5)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"levels": [0.1, 1.0]}, r"0\.1"),
        ({"levels": []}, "one at least"),
        ({"levels": [0.5, 0.5]}, "different"),
        ({"int8": True}, "needs texts"),
        ({"target": "abacus"}, "a target is one of vnni, any"),
        ({"int8": True, "texts": TEXTS, "target": "amx"}, "a target is one of vnni, any"),
        ({"scales": "per row"}, "scales are static or dynamic"),
    ],
)
def test_what_can_not_be_exported_is_refused_and_nothing_is_written(
    checkpoint, tmp_path, options, says
):
    with pytest.raises(ValueError, match=says):
        export(checkpoint, tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_no_file_holds_is_refused(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("apportion.serving.runtime.exporting._LARGEST", 1000)
    with pytest.raises(ValueError, match="2 GiB at most"):
        export(checkpoint, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_only_nested_classifiers_of_known_architectures_are_exported(checkpoint, tmp_path, encoder):
    with pytest.raises(ValueError, match="a dense checkpoint has no budgets to export"):
        export(Checkpoint(checkpoint.model.plain()), tmp_path / "out")
    with pytest.raises(ValueError, match="no tokenizer or no classes"):
        export(Checkpoint(nested("bert")), tmp_path / "out")
    own = Elastic(encoder, ALL, length=12, block=16)
    with pytest.raises(ValueError, match="can't be exported; classifiers of texts can"):
        build_graph(own.nested(), (1.0,))
    with pytest.raises(ValueError, match="can't be exported; classifiers of texts can"):
        export(Checkpoint(own.nested()), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_folder_is_refused_in_one_sentence(checkpoint, tmp_path):
    export(checkpoint, tmp_path / "out")
    graph = tmp_path / "out" / "model.onnx"
    whole = graph.read_bytes()
    graph.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match=r"model.onnx is truncated or was changed"):
        Runtime(tmp_path / "out")
    graph.unlink()
    with pytest.raises(ValueError, match=r"has no model.onnx"):
        Runtime(tmp_path / "out")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"levels": [2.0]}, "is damaged: levels"),
        ({"precision": None}, "is damaged"),
        ({"kept": []}, "is damaged"),
        ({"classes": []}, "is damaged"),
        ({"task": "x"}, "is damaged"),
        ({"classes": ["one"]}, "names 1 classes, and its graph has 3"),
        ({"version": 9}, "is of version 9"),
        ({"format": "other"}, "was not|no checkpoint|apportion"),
    ],
)
def test_a_damaged_manifest_is_refused_in_one_sentence(checkpoint, tmp_path, changed, says):
    export(checkpoint, tmp_path / "out", levels=[0.5, 1.0])
    manifest = tmp_path / "out" / "apportion.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **changed}))
    with pytest.raises(ValueError, match=says) as refused:
        Runtime(tmp_path / "out")
    assert "\n" not in str(refused.value)


def test_the_folder_of_somebody_else_is_left_alone(checkpoint, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not an exported model"):
        export(checkpoint, tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"


def test_an_exported_folder_is_run_without_torch(checkpoint, tmp_path):
    export(checkpoint, tmp_path / "out")
    script = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'accelerate', 'onnx'): sys.modules[name] = None\n"
        "from apportion import Runtime\n"
        "print(Runtime(sys.argv[1]).predict(['a match'], budget=0.25)[0][0])\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() in checkpoint.classes


def test_the_whole_budget_of_everything_is_the_dense_model(checkpoint, tmp_path):
    export(checkpoint, tmp_path / "out")
    inputs = checkpoint.words.pad(checkpoint.words.encode(TEXTS[:8]))
    with torch.no_grad():
        dense = ask(checkpoint.model.plain().eval(), inputs).numpy()
    arrays = {name: values.numpy() for name, values in inputs.items()}
    np.testing.assert_allclose(Runtime(tmp_path / "out")(**arrays), dense, atol=2e-5)
    assert Allocation.everything(checkpoint.model.units).cost == 1.0


def test_the_command_exports_and_says_how_the_file_answers(checkpoint, tmp_path, capsys):
    save(checkpoint, tmp_path / "nested")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    words = ["export", str(tmp_path / "nested"), "--out", str(tmp_path / "onnx"), "--int8"]
    code, out, err = command(capsys, *words)
    assert code == 2 and "give some with --texts FILE" in err
    words += ["--texts", str(tmp_path / "texts.txt"), "--levels", "0.5,1"]
    code, out, _ = command(capsys, *words)
    assert code == 0 and "same label" in out and "0.5" in out
    assert Runtime(tmp_path / "onnx").facts["checked"]["rows"] == len(TEXTS)
    code, _, err = command(capsys, *words[:-1], "a,b")
    assert code == 2 and "--levels are numbers" in err
    assert Runtime(tmp_path / "onnx").levels == (0.5, 1.0)


def test_texts_are_the_training_rows_where_none_are_given(checkpoint, tmp_path, capsys):
    (tmp_path / "data").mkdir()
    lines = [f'"x","{text}"' for text in TEXTS[:12]]
    (tmp_path / "data" / "train.csv").write_text("\n".join(["label,text", *lines]))
    task = {"kind": "text", "data": str(tmp_path / "data")}
    save(replace(checkpoint, notes={**checkpoint.notes, "task": task}), tmp_path / "nested")
    words = ["export", str(tmp_path / "nested"), "--out", str(tmp_path / "onnx"), "--int8"]
    assert command(capsys, *words)[0] == 0
    assert Runtime(tmp_path / "onnx").facts["checked"]["rows"] == 12


def test_int8_without_texts_is_refused_by_the_name_of_the_option(checkpoint, tmp_path, capsys):
    save(checkpoint, tmp_path / "nested")
    words = ["export", str(tmp_path / "nested"), "--out", str(tmp_path / "onnx"), "--int8"]
    code, _, said = command(capsys, *words)
    assert code == 2 and "give some with --texts FILE" in " ".join(said.split())
    assert not (tmp_path / "onnx").exists()


def test_a_file_for_vnni_warns_where_there_is_none(checkpoint, tmp_path, monkeypatch):
    export(checkpoint, tmp_path / "out", texts=TEXTS, int8=True, target="vnni")
    monkeypatch.setattr("apportion.serving.runtime.engines.int8_target", lambda: "any")
    with pytest.warns(UserWarning, match="processors with VNNI, which this one has not"):
        wrong = Runtime(tmp_path / "out")
    assert wrong.identity["precision"] == "int8, saturating"  # so no certificate fits it


def test_dynamic_scales_are_checked_on_all_texts(checkpoint, tmp_path):
    many = [f"{text} {n}" for n in range(8) for text in TEXTS][:100]
    for scales, count in (("dynamic", 100), ("static", 64)):
        facts = export(checkpoint, tmp_path / scales, texts=many, int8=True, scales=scales)
        assert facts["checked"]["rows"] == count


def test_a_folder_that_can_not_take_its_place_leaves_the_old_one(checkpoint, tmp_path, monkeypatch):
    export(checkpoint, tmp_path / "out", levels=[0.5, 1.0])
    moves, rename = [], Path.rename

    def second_fails(path, target):
        moves.append(path)
        if len(moves) == 2:
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", second_fails)
    with pytest.raises(OSError, match="No space"):
        export(checkpoint, tmp_path / "out", levels=[1.0])
    assert len(moves) == 3 and Runtime(tmp_path / "out").levels == (0.5, 1.0)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    monkeypatch.undo()
    (tmp_path / "out").rename(tmp_path / ".out.previous")  # a kill between the two moves
    assert Runtime(tmp_path / "out").levels == (0.5, 1.0)


def test_a_file_that_answers_otherwise_is_said_to(checkpoint, tmp_path, capsys, monkeypatch):
    save(checkpoint, tmp_path / "nested")
    monkeypatch.setattr("apportion.cli.export._POOR", 1.1)
    code, _, said = command(
        capsys, "export", str(tmp_path / "nested"), "--out", str(tmp_path / "onnx")
    )
    assert code == 0 and "100 % of the labels are the checkpoint's: is this processor" in said


def test_a_folder_whose_data_is_elsewhere_is_timed_with_made_up_rows(both, capsys):
    words = ("bench", str(both[1].folder), "--repeats", "5", "--batch", "2", "--json")
    code, out, told = command(capsys, *words)
    assert code == 0 and "made-up rows are timed" in told
    assert [one["budget"] for one in json.loads(out)] == list(both[1].levels)[::-1]


def test_threads_of_a_program_share_a_runtime(both):
    for runtime in both:
        budgets = [runtime.levels[n % len(runtime.levels)] for n in range(24)]
        wanted = [runtime.predict(TEXTS[:3], budget=budget) for budget in budgets]
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(runtime.predict, TEXTS[:3], budget=b) for b in budgets]
            found = [one.result() for one in asked]
        for one, other in zip(found, wanted, strict=True):
            assert [label for label, _ in one] == [label for label, _ in other]
            np.testing.assert_allclose([p for _, p in one], [p for _, p in other], atol=1e-6)


def test_idle_threads_of_a_session_do_not_spin(both, monkeypatch):
    import onnxruntime

    given = []
    monkeypatch.setattr(
        onnxruntime, "InferenceSession", lambda _, options, **__: given.append(options)
    )
    open_session(both[1].folder / "model.onnx", 2)
    (options,) = given
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert options.intra_op_num_threads == 2


def test_the_lines_of_plain_onnxruntime_in_the_docs_run(both, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(import numpy, onnxruntime.*?)```", page, flags=re.DOTALL)
    _, file = both
    names: dict[str, object] = {}
    exec(code.replace("runs/mine/onnx", str(file.folder)), names)
    inputs = file.tokenizer.pad_arrays(file.tokenizer.encode(["a text"]))
    np.testing.assert_allclose(names["logits"], file(**inputs, budget=0.25), atol=1e-5)


@pytest.fixture(scope="module")
def both(checkpoint, tmp_path_factory):
    """One model as a checkpoint and as an exported folder, each with its runtime."""
    home = tmp_path_factory.mktemp("both")
    save(checkpoint, home / "checkpoint")
    export(checkpoint, home / "onnx", texts=TEXTS)
    return Runtime(home / "checkpoint"), Runtime(home / "onnx")


def test_a_checkpoint_and_its_export_are_run_as_one_object(both):
    views, file = both
    assert views.levels == file.levels == (0.25, 0.375, 0.5, 0.75, 1.0)
    assert views.costs == file.costs and len(file.costs) == 5
    assert views.classes == file.classes == tuple(sorted(CLUES))
    assert views.level_of(0.3) == file.level_of(0.3) == 0.25
    rows = file.tokenizer.pad_arrays(file.tokenizer.encode(TEXTS))
    for budget in (0.25, 0.45, 1.0):
        found = file(**rows, budget=budget)
        assert found.dtype == np.float32 and found.shape == (len(TEXTS), len(CLUES))
        np.testing.assert_allclose(views(**rows, budget=budget), found, atol=2e-5)
        answers = views.predict(TEXTS, budget=budget), file.predict(TEXTS, budget=budget)
        assert [name for name, _ in answers[0]] == [name for name, _ in answers[1]]


def test_the_same_weights_at_levels_that_buy_other_units_are_another_model(checkpoint, tmp_path):
    other = copy.deepcopy(checkpoint)
    other.model.shortened(frontier(other.model.units.layers))
    for name, made in (("one", checkpoint), ("same", checkpoint), ("other", other)):
        save(made, tmp_path / name)
    one, same, shortened = (Runtime(tmp_path / name).identity for name in ("one", "same", "other"))
    assert one == same and one["weights"] == shortened["weights"]
    assert one["levels"] != shortened["levels"]


def test_an_identity_names_weights_words_runtime_and_precision(both, checkpoint, tmp_path):
    views, file = both
    for runtime, library in ((views, "torch "), (file, "onnxruntime ")):
        names = {"weights", "levels", "tokenizer", "runtime", "precision"}
        assert set(runtime.identity) == names
        assert runtime.identity["runtime"].startswith(library)
        assert len(runtime.identity["weights"]) == len(runtime.identity["tokenizer"]) == 64
        assert runtime.identity["precision"] == "float32"
    assert views.identity["tokenizer"] == file.identity["tokenizer"]
    other = otherwise(checkpoint)
    save(other, tmp_path / "other")
    assert Runtime(tmp_path / "other").identity["weights"] != views.identity["weights"]
    export(checkpoint, tmp_path / "int8", texts=TEXTS, int8=True)
    assert Runtime(tmp_path / "int8").identity["precision"] == "int8"


def otherwise(checkpoint: Checkpoint) -> Checkpoint:
    """The same checkpoint but for one weight."""
    other = copy.deepcopy(checkpoint)
    with torch.no_grad():
        next(other.model.parameters()).view(-1)[0] += 1.0
    return other


def test_a_runtime_answers_arrays_that_can_not_be_written_and_masks_that_are_left_out(both):
    for runtime in both:
        ids = np.array([[2, 7, 8, 3]])
        ids.flags.writeable = False
        np.testing.assert_array_equal(runtime(ids), runtime(ids, np.ones_like(ids)))
        with pytest.raises(ValueError, match=r"\[rows, tokens\], not \(4,\)"):
            runtime(ids[0])


def test_levels_of_a_checkpoint_may_be_given_and_a_plain_model_has_one(both, tmp_path):
    views, file = both
    assert Runtime(views.folder, levels=(1.0, 0.3)).levels == (0.3, 1.0)
    for levels in ((), (0.5, 0.5)):
        with pytest.raises(ValueError, match="different budgets, one at least"):
            Runtime(views.folder, levels=levels)
    with pytest.raises(ValueError, match=r"0\.1"):
        Runtime(views.folder, levels=(0.1,))
    with pytest.raises(ValueError, match="chosen when it was written"):
        Runtime(file.folder, levels=(0.5,))
    folder = write_classifier(tmp_path, sorted(CLUES))
    assert Runtime(folder).levels == (1.0,) and Runtime(folder).costs == (1.0,)
    with pytest.raises(ValueError, match="its one level is 1"):
        Runtime(folder, levels=(0.5,))


def test_a_runtime_needs_a_folder_and_threads(both, tmp_path):
    with pytest.raises(ValueError, match="there is no folder"):
        Runtime(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="threads must be a whole number"):
        Runtime(both[1].folder, threads=0)
    with pytest.raises(ValueError, match="threads must be a whole number"):
        Runtime(both[1].folder, threads=True)


def test_arrays_and_texts_that_can_not_be_read_are_refused_alike(both):
    ids = np.array([[2, 7, 8, 3]])
    for runtime in both:
        for wrong in (ids - 3, ids + 10**6, ids + 0.5):
            with pytest.raises(ValueError, match="input_ids are whole numbers from 0 to"):
                runtime(wrong)
        with pytest.raises(ValueError, match=r"token_type_ids are \(1, 4\)"):
            runtime(ids, token_type_ids=ids[:, :2])
        with pytest.raises(ValueError, match=r"\[text\]"):
            runtime.predict("abc")
        for batch in (0, -1, 2.0):
            with pytest.raises(ValueError, match="1 row at least"):
                runtime.predict(TEXTS, batch=batch)
        for budget in ("0.5", True, float("nan")):
            with pytest.raises(ValueError, match=r"in \(0, 1\]"):
                runtime.predict(TEXTS, budget=budget)
        with pytest.raises(ValueError, match="needs within_ms"):
            runtime.predict(TEXTS, strict=True)


def test_answers_that_are_no_numbers_are_refused(both, monkeypatch):
    engine = both[1]._engine
    monkeypatch.setattr(
        engine, "answer", lambda ids, *_: np.full((len(ids), len(both[1].classes)), np.nan)
    )
    with pytest.raises(ValueError, match="numbers that are none"):
        both[1].predict(TEXTS)
