"""The parts of a checkpoint have to fit each other, whoever wrote them."""

from __future__ import annotations

import hashlib
import json
import shutil
import time

import pytest
import torch
from pretrained import write_classifier
from safetensors.torch import load_file, save_file

from apportion.data.tokenizer import Tokenizer
from apportion.elastic.checkpoint import (
    CONFIG,
    GATES,
    MANIFEST,
    WEIGHTS,
    WORDS,
    Checkpoint,
    load,
    save,
)
from apportion.elastic.elastic import Elastic
from apportion.models.encoder import Encoder, EncoderConfig
from apportion.models.hub import load_model, load_tokenizer
from apportion.training.recipes import BUDGETED

CLASSES = ["a", "b"]
TEXTS = ["the match and the goal", "a bank and a stock", "the match", "a bank"]
NOTES = {
    "classes": CLASSES,
    "task": {"kind": "text", "data": "here", "text": ["text"], "length": 8},
    "recipes": [BUDGETED.to_dict()],
    "measured": [{"budget": 0.5, "form": "cut", "cost": 0.5, "accuracy": 0.9, "rows": 10}],
    "data": "0123",
    "seed": 7,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folders that are written once; every test gets copies of its own."""
    home = tmp_path_factory.mktemp("made")
    words = Tokenizer.learn(TEXTS, 8, size=30, min_count=1)
    torch.manual_seed(0)
    shape = {"classes": 2, "layers": 2, "heads": 4, "hidden": 16, "feedforward": 64}
    model = Elastic(
        Encoder(EncoderConfig(len(words), 8, **shape)), ("heads", "feedforward"), length=8
    )
    nested = model.nested(torch.rand(len(model.units)))
    save(Checkpoint(nested, NOTES, words=words), home / "own")
    dense = str(write_classifier(home / "theirs", CLASSES))
    elastic = Elastic(load_model(dense, CLASSES, 0, trained=True), length=8)
    save(Checkpoint(elastic, NOTES, words=load_tokenizer(dense, 8)), home / "elastic")
    return home


@pytest.fixture
def folder(made, tmp_path):
    """A nested model of texts, ours."""
    return shutil.copytree(made / "own", tmp_path / "own")


@pytest.fixture
def dense(made, tmp_path):
    """A classifier as Transformers saves one."""
    return shutil.copytree(made / "theirs", tmp_path / "theirs")


@pytest.fixture
def theirs(made, tmp_path):
    """The same as a checkpoint with gates."""
    return shutil.copytree(made / "elastic", tmp_path / "elastic")


def test_a_length_that_leaves_no_room_for_a_text_is_refused(dense):
    with pytest.raises(ValueError, match="puts 2 tokens around a text: a length of 2"):
        load_tokenizer(str(dense), 2)
    assert load_tokenizer(str(dense), 3).length == 3


def sign(folder):
    """What somebody does who changes a file on purpose: its size and hash are made anew."""
    manifest = json.loads((folder / MANIFEST).read_text())
    for name in filter(lambda name: (folder / name).exists(), manifest["files"]):
        data = (folder / name).read_bytes()
        facts = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        manifest["files"][name] = facts
    (folder / MANIFEST).write_text(json.dumps(manifest))


def change(folder, name, edit):
    """Changes a JSON file, and signs it."""
    values = json.loads((folder / name).read_text())
    edit(values)
    (folder / name).write_text(json.dumps(values))
    if (folder / MANIFEST).exists():
        sign(folder)


def change_tensors(folder, name, edit):
    tensors = load_file(folder / name)
    edit(tensors)
    save_file(tensors, folder / name)
    sign(folder)


def refused(folder, says):
    started = time.monotonic()
    with pytest.raises(ValueError, match=says) as error:
        load(folder)
    assert time.monotonic() - started < 5  # on a busy machine; it is milliseconds
    assert "\n" not in str(error.value)


def test_whole_folders_load(folder, theirs, dense):
    for place in (folder, theirs, dense):
        assert load(place).classes == CLASSES


@pytest.mark.parametrize("name", ["vocabulary", "length", "classes", "layers", "hidden"])
@pytest.mark.parametrize("size", [10**5, 10**9, 10**400])
def test_our_encoder_is_not_built_in_sizes_that_its_weights_do_not_have(folder, name, size):
    change(folder, MANIFEST, lambda m: m["model"]["config"].update({name: size}))
    refused(folder, f"says {name} = 10000")


@pytest.mark.parametrize(
    "name", ["num_hidden_layers", "hidden_size", "vocab_size", "num_labels", "intermediate_size"]
)
@pytest.mark.parametrize("place", ["theirs", "dense"])
def test_nor_is_a_model_of_transformers(request, place, name):
    folder = request.getfixturevalue(place)
    change(folder, CONFIG, lambda c: c.update({name: 10**8}))
    refused(folder, f"says {name} = 100000000")
    with pytest.raises(ValueError, match=f"says {name} = 100000000"):
        load_model(str(folder), CLASSES, 0)


def test_nor_in_sizes_that_are_small_one_by_one(dense):
    change(dense, CONFIG, lambda c: c.update(hidden_size=16_000, intermediate_size=16_000))
    refused(dense, "describes a model of .* numbers, and its weights have")


def test_units_without_end_are_not_listed(folder, theirs):
    change(folder, MANIFEST, lambda m: m["units"]["runs"][0].__setitem__(2, 10**12))
    refused(folder, "units has a run of 1000000000000 heads in layer 0")


def test_without_its_manifest_an_elastic_folder_is_not_a_dense_one(theirs):
    (theirs / MANIFEST).unlink()
    refused(theirs, r"has gates\.safetensors and no apportion\.json; it is not complete")
    (theirs / MANIFEST).symlink_to(MANIFEST)
    refused(theirs, "not readable as JSON")


@pytest.mark.parametrize("name", [WEIGHTS, GATES])
def test_tensors_that_are_none_are_one_sentence(folder, name):
    (folder / name).write_bytes(b"")
    sign(folder)
    refused(folder, "not readable as safetensors")


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda n: n.update(classes=["a"]), "'classes' names 1 classes, and the model has 2"),
        (lambda n: n.update(classes=["a", "b", "c"]), "'classes' names 3 classes"),
        (lambda n: n.update(classes="ab"), "'classes' is not a list of names: 'ab'"),
        (lambda n: n.update(classes=[]), "'classes' is not a list of names"),
        (lambda n: n.update(classes=5), "'classes' is not a list of names: 5"),
        (lambda n: n.update(classes=["a", "a"]), "'classes' names one class twice"),
        (lambda n: n.update(classes=["a", 5]), "'classes' is not a list of names"),
        (lambda n: n.update(task=[]), "'task' is not a table"),
        (lambda n: n["task"].update(text=5), "'task' can't be used: .* text must be a list"),
        (lambda n: n["task"].update(text=[]), "'task' can't be used"),
        (lambda n: n["task"].update(kind=None), "'task' is of kind None"),
        (lambda n: n.update(task=None), "'task' is not a table"),
        (lambda n: n.update(recipes=None), "'recipes' is not a list"),
        (lambda n: n.update(recipes=5), "'recipes' is not a list"),
        (lambda n: n.update(recipes=[5]), "'recipes' has no table as its number 1"),
        (lambda n: n["recipes"][0].update(floor="x"), "'recipes' can't be used"),
        (lambda n: n["recipes"][0].update(floor=None), "'recipes' can't be used"),
        (lambda n: n["recipes"][0].update(floor=-1), "'recipes' can't be used"),
        (lambda n: n["recipes"][0].pop("name"), "'recipes' has a number 1 without name"),
        (lambda n: n.update(measured={}), "'measured' is not a list"),
        (lambda n: n["measured"][0].pop("form"), "'measured' has a point without"),
        (lambda n: n["measured"][0].update(budget="x"), "'measured' has a point without"),
        (lambda n: n["measured"][0].update(accuracy=7), "'measured' has a point of accuracy 7"),
        (lambda n: n["measured"][0].update(cost=1.5), "'measured' has a point of cost 1.5"),
        (lambda n: n.update(data=5), "'data' is not text"),
        (lambda n: n.update(seed="x"), "'seed' is not a whole number"),
        (lambda n: n.update(cut=5), "'cut' is not a table"),
        (lambda n: n.update(unlabelled={"rows": 5}), "'unlabelled' is not a table of source"),
    ],
)
def test_notes_that_can_not_be_so_are_named(folder, edit, says):
    change(folder, MANIFEST, lambda m: edit(m["notes"]))
    refused(folder, f"do not fit each other: the note {says}")


def test_what_would_be_refused_is_not_saved(folder):
    loaded = load(folder)
    for classes in (["a"], "ab"):
        with pytest.raises(ValueError, match="the note 'classes'"):
            save(Checkpoint(loaded.model, {"classes": classes}, words=loaded.words), folder)
    with pytest.raises(ValueError, match="can't be written as JSON"):
        save(Checkpoint(loaded.model, {"mine": float("nan")}, words=loaded.words), folder)
    with torch.no_grad():
        loaded.model.model.classifier.bias[0] = torch.nan
    with pytest.raises(ValueError, match=r"not finite.*: model\.classifier\.bias"):
        save(loaded, folder)
    assert load(folder).notes == NOTES


def test_notes_of_ones_own_may_be_anything(folder):
    loaded = load(folder)
    save(Checkpoint(loaded.model, {"mine": [1, {"a": None}]}), folder)
    assert load(folder).notes == {"mine": [1, {"a": None}]}


def test_names_that_differ_from_those_of_the_config_are_refused(theirs):
    change(theirs, MANIFEST, lambda m: m["notes"].update(classes=["b", "a"]))
    refused(theirs, "the note 'classes' says b, a, and the config a, b")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e12, 3e38])
@pytest.mark.parametrize("name", [WEIGHTS, GATES])
def test_numbers_that_are_not_finite_are_refused(folder, name, value):
    """Neither those that are there, nor those that come out of what is there."""
    if name == GATES and value == 3e38:
        change(folder, MANIFEST, lambda m: m["elastic"].update(tau=1e-60))
    else:
        key = "a" if name == GATES else "classifier.weight"
        change_tensors(folder, name, lambda t: t[key].fill_(value))
    refused(folder, "not finite")


@pytest.mark.parametrize("kind", [torch.int64, torch.bool])
def test_weights_that_are_no_fractions_are_refused(folder, dense, kind):
    key = "classifier.weight"
    change_tensors(folder, WEIGHTS, lambda t: t.update({key: t[key].to(kind)}))
    refused(folder, f"{key} is of type (I64|BOOL), expected torch.float32")
    tensors = load_file(dense / WEIGHTS)
    save_file({**tensors, key: tensors[key].to(kind)}, dense / WEIGHTS, {"format": "pt"})
    refused(dense, f"{key} is of type (I64|BOOL), expected torch.float32")


def test_an_order_that_skips_units_of_a_layer_is_refused(folder):
    change_tensors(folder, GATES, lambda t: t.update(order=t["order"].flip(0)))
    refused(folder, "the order does not buy the .* from the first on")


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda m: m.update(kind="dense"), "a checkpoint of kind dense says what is elastic"),
        (lambda m: m.update(notes=5), "notes is not a table"),
        (lambda m: m.update(model=5), "model does not say its type"),
        (lambda m: m.update(files=[]), "files does not hold"),
        (lambda m: m["files"].update({"../x": m["files"][WEIGHTS]}), "files does not hold"),
        (lambda m: m["files"].pop(GATES), "files lacks gates.safetensors"),
        (lambda m: m["elastic"].update(tau=0), "elastic has tau = 0"),
        (lambda m: m["elastic"].update(kinds="heads"), "elastic has kinds = 'heads'"),
        (lambda m: m["elastic"].update(block=0), "elastic has block = 0"),
        (lambda m: m["units"]["runs"].reverse(), "units has runs that are not in the order"),
        (lambda m: m["units"]["runs"][0].__setitem__(3, -1), "at a cost of -1"),
        (lambda m: m["model"]["config"].update(heads=2), "lists other units"),
        (lambda m: m["model"]["config"].update(heads=True), "heads must be a whole number"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(folder, edit, says):
    change(folder, MANIFEST, edit)
    refused(folder, says)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda w: w["truncation"].update(max_length=9), "reads 9 tokens, and the model 8"),
        (lambda w: w["model"]["vocab"].update(more=99), "a word 99, and the model knows"),
        (lambda w: w.update(truncation=None), "a tokenizer truncates"),
        (lambda w: w["truncation"].update(stride=10**9), "a stride of 1000000000"),
        (lambda w: w.update(model={}), "not a tokenizer"),
    ],
)
def test_words_that_the_model_does_not_know_are_refused(folder, edit, says):
    change(folder, WORDS, edit)
    refused(folder, says)


@pytest.mark.parametrize("place", ["theirs", "dense"])
def test_a_token_around_each_text_has_to_be_there(request, place, capfd):
    folder = request.getfixturevalue(place)
    capfd.readouterr()
    change(folder, WORDS, lambda w: w["post_processor"]["special_tokens"].pop("[SEP]"))
    refused(folder, r"puts \[SEP\] around a text")
    assert capfd.readouterr().err == ""


def test_a_tokenizer_pads_nothing_by_itself(folder):
    fixed = {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None}
    fixed |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    change(folder, WORDS, lambda w: w.update(padding=fixed))
    assert len(load(folder).words.encode(["the match"])[0]) == 2


def test_settings_of_a_tokenizer_that_are_none_are_refused(dense):
    for value in ("x", [], {}):
        change(dense, "tokenizer_config.json", lambda s, v=value: s.update(model_max_length=v))
        refused(dense, "can't be (used|loaded)")


def test_a_config_of_another_type_is_refused(theirs):
    change(theirs, CONFIG, lambda c: c.update(model_type="electra"))
    refused(theirs, "holds a model of type 'bert', and its config.json is of 'electra'")
