"""What is exported and how: gates that are nested, dynamic scales, folders that commands take."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
from architectures import ask
from commands import run as command
from onnx import TensorProto, helper
from pretrained import write_classifier
from texts import CLUES, folder, rows

from apportion.data.text import Text
from apportion.elastic.checkpoint import Checkpoint, save
from apportion.elastic.elastic import Elastic
from apportion.models.hub import tokenizer_of_folder
from apportion.models.reloading import load_folder
from apportion.serving.runtime.exported import facts_of_file
from apportion.serving.runtime.exporting import export, nested_at
from apportion.serving.runtime.session import Runtime
from apportion.serving.runtime.skipping import Skipping

ALL = ("heads", "feedforward")
TEXTS = [text for _, text in rows(40, 3)]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("exporting")


@pytest.fixture(scope="module")
def parts(home):
    """A classifier's plain model with weights of some size, and its tokenizer."""
    place = write_classifier(home / "classifier", sorted(CLUES))
    torch.manual_seed(2)
    model = load_folder(place)[0]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.dim() == 2 else 1.0)
    return model, tokenizer_of_folder(place)


@pytest.fixture(scope="module")
def checkpoint(home, parts) -> Checkpoint:
    model, words = parts
    elastic = Elastic(model, ALL, length=24, block=32).eval()
    elastic = elastic.nested(torch.rand(len(elastic.units))).made_for("nested", 1, lowest=0.25)
    task = Text(str(folder(home / "data")), length=24).build(words)
    notes = {"classes": sorted(CLUES), "task": dict(task.spec), "data": task.digest()}
    return Checkpoint(elastic, notes, words=words)


@pytest.fixture(scope="module")
def exported(home, checkpoint):
    save(checkpoint, home / "checkpoint")
    export(checkpoint, home / "onnx", texts=TEXTS)
    return home / "onnx"


def soft(parts, scores: torch.Tensor | None) -> Checkpoint:
    """A model with gates: those that open its heads by scores, or some that change their mind."""
    model, words = parts
    elastic = Elastic(model, ("heads",), length=24).eval()
    with torch.no_grad():
        if scores is not None:
            elastic.gates.order_by(scores)
        else:
            elastic.gates.s.copy_(torch.linspace(6, -6, len(elastic.units)))
    return Checkpoint(elastic, {"classes": sorted(CLUES)}, words=words)


def test_gates_that_open_in_one_order_are_exported_in_their_hard_form(parts, tmp_path):
    checkpoint = soft(parts, torch.tensor([3.0, 8.0, 1.0, 6.0, 2.0, 7.0, 5.0, 4.0]))
    assert checkpoint.model.form == "soft"
    export(checkpoint, tmp_path / "out", levels=(0.25, 0.5, 1.0))
    runtime, views = Runtime(tmp_path / "out"), Skipping(checkpoint.model)
    inputs = checkpoint.words.pad(checkpoint.words.encode(TEXTS))
    arrays = {name: values.numpy() for name, values in inputs.items()}
    for level in (0.25, 0.5, 1.0):
        with torch.no_grad():
            wanted = ask(views, inputs, budget=level).numpy()
        np.testing.assert_allclose(runtime(**arrays, budget=level), wanted, atol=2e-5)


def test_gates_that_swap_units_between_levels_are_refused_by_name(parts, tmp_path):
    swapping = soft(parts, None)
    with pytest.raises(ValueError, match=r"switches off \d+ units that 0\.25 keeps"):
        export(swapping, tmp_path / "out", levels=(0.25, 0.75))
    assert list(tmp_path.iterdir()) == []
    assert nested_at(swapping.model, (0.25,)).form == "nested"  # one level has no other


def test_dynamic_scales_say_how_many_labels_the_batch_changes(checkpoint, tmp_path):
    made = {
        scales: export(
            checkpoint,
            tmp_path / scales,
            texts=TEXTS,
            levels=(0.25, 1.0),
            int8=True,
            scales=scales,
        )
        for scales in ("static", "dynamic")
    }
    for scales, facts in made.items():
        assert facts["scales"] == scales and len(facts["checked"]["changed"]) == 2
        assert set(facts["ranges"].values()) <= {
            start + tail
            for start in ("", "equalised, ")
            for tail in ("min-max", "99.99 %", "99.9 %")
        }
    assert made["static"]["checked"]["changed"] == [0.0, 0.0]
    kinds = {
        scales: {node.op_type for node in onnx.load(tmp_path / scales / "model.onnx").graph.node}
        for scales in made
    }
    assert "DynamicQuantizeLinear" in kinds["dynamic"] - kinds["static"]
    fixed, own = (Runtime(tmp_path / scales) for scales in made)
    ids = fixed.tokenizer.encode(TEXTS)
    together = fixed.tokenizer.pad_arrays(ids)
    alone = fixed.tokenizer.pad_arrays(ids[:1])
    row = slice(len(ids[0]))
    assert alone["input_ids"].shape[1] == row.stop
    np.testing.assert_allclose(fixed(**alone)[0], fixed(**together)[0], atol=2e-5)
    assert np.abs(own(**alone)[0] - own(**together)[0]).max() > 1e-5


def test_without_onnx_nothing_is_exported_or_run(checkpoint, exported, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ValueError, match=r"onnxruntime is not installed: .*\[onnx\]'"):
        export(checkpoint, tmp_path / "out")
    with pytest.raises(ValueError, match=r"onnxruntime is not installed: pip install"):
        Runtime(exported)
    assert list(tmp_path.iterdir()) == []


def foreign(home, exported, graph: onnx.ModelProto) -> None:
    """An exported folder whose graph was replaced, and whose manifest was made to fit."""
    home.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (home / name).write_bytes((exported / name).read_bytes())
    (home / "model.onnx").write_bytes(graph.SerializeToString())
    facts = json.loads((exported / "apportion.json").read_text())
    facts["files"]["model.onnx"] = facts_of_file(home / "model.onnx")
    (home / "apportion.json").write_text(json.dumps(facts))


def test_a_graph_of_somebody_else_is_refused(exported, tmp_path):
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    found = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "other", [given], [found])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    foreign(tmp_path / "other", exported, model)
    with pytest.raises(ValueError, match="no graph that export wrote: it has no input"):
        Runtime(tmp_path / "other")


def test_weights_that_lie_in_a_missing_file_are_one_sentence(exported, tmp_path):
    model = onnx.load(exported / "model.onnx")
    table = next(one for one in model.graph.initializer if one.name.startswith("words"))
    onnx.external_data_helper.set_external_data(table, "weights.bin")
    table.ClearField("raw_data")
    foreign(tmp_path / "other", exported, model)
    with pytest.raises(ValueError, match=r"model\.onnx can't be run") as error:
        Runtime(tmp_path / "other")
    assert "\n" not in str(error.value)


def test_a_checkpoint_is_not_replaced_by_an_export(checkpoint, exported, home):
    before = (home / "checkpoint" / "apportion.json").read_text()
    with pytest.raises(ValueError, match="is not an exported model; choose another folder"):
        export(checkpoint, home / "checkpoint")
    assert (home / "checkpoint" / "apportion.json").read_text() == before


def test_predictions_of_an_exported_folder_are_those_of_its_checkpoint(
    exported, home, tmp_path, capsys
):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    said = []
    for place in (home / "checkpoint", exported):
        code, out, err = command(capsys, "predict", str(place), str(texts), "-b", "0.5")
        assert code == 0 and "40 rows predicted" in err
        said.append([line.split(",")[:2] for line in out.splitlines()])
    assert said[0] == said[1] and len(said[0]) == 41
    code, _, err = command(capsys, "predict", str(exported), str(texts), "-b", "0.1")
    assert code == 2 and "below the lowest level" in err
    code, _, err = command(capsys, "predict", str(exported), str(texts), "-b", "0.5", "--soft")
    assert code == 2 and "no soft gates" in err


def test_an_exported_folder_predicts_a_csv_file_without_torch(exported, tmp_path):
    script = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'accelerate', 'datasets', 'onnx', 'scipy'):\n"
        "    sys.modules[name] = None\n"
        "from apportion.cli import main\n"
        "sys.argv[0] = 'apportion'\n"
        "main()\n"
    )
    (tmp_path / "in.csv").write_text("text,more\n" + "\n".join(f"{text},x" for text in TEXTS))
    words = ["predict", str(exported), str(tmp_path / "in.csv"), "-b", "0.25", "--out"]
    words.append(str(tmp_path / "out.csv"))
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0].startswith("line,label,p(") and len(lines) == 41
    wanted = Runtime(exported).predict(TEXTS, budget=0.25)
    assert [line.split(",")[1] for line in lines[1:]] == [name for name, _ in wanted]


def test_sweep_bench_and_inspect_take_an_exported_folder(exported, home, capsys):
    code, out, _ = command(capsys, "sweep", str(exported), "--json")
    assert code == 0
    points = json.loads(out)["points"]
    assert [point["budget"] for point in points] == [0.25, 0.375, 0.5, 0.75, 1.0]
    budgets = [word for point in points for word in ("-b", str(point["budget"]))]
    code, out, _ = command(capsys, "sweep", str(home / "checkpoint"), *budgets, "--json")
    assert code == 0
    for mine, views in zip(points, json.loads(out)["points"], strict=True):
        assert mine["accuracy"] == views["accuracy"]
        assert mine["cost"] == pytest.approx(views["cost"], abs=1e-5)
        assert mine["loss"] == pytest.approx(views["loss"], abs=1e-4)
    words = ["bench", str(exported), "-b", "0.25", "--batch", "2", "--repeats", "5", "--json"]
    code, out, _ = command(capsys, *words)
    assert code == 0
    timed = json.loads(out)
    assert [record["budget"] for record in timed] == [1.0, 0.25]
    assert timed[0]["bound"] == timed[0]["speedup"] == 1.0 < timed[1]["bound"]
    assert timed[1]["runtime"].startswith("onnxruntime ") and timed[1]["batch"] == 2
    code, out, _ = command(capsys, "inspect", str(exported))
    assert code == 0 and "5 levels in one file, float32" in out
    code, out, _ = command(capsys, "inspect", str(exported), "--json")
    assert json.loads(out)["levels"] == [0.25, 0.375, 0.5, 0.75, 1.0]
    for words in (["inspect", str(exported)], ["sweep", str(exported)]):
        code, _, err = command(capsys, *words, "--floor", "1")
        assert code == 2 and "--floor is for checkpoints" in err
