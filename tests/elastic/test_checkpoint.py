from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch

from apportion.elastic.checkpoint import (
    CARD,
    GATES,
    MANIFEST,
    WEIGHTS,
    Checkpoint,
    load,
    save,
    weights_digest,
)
from apportion.elastic.elastic import Elastic
from apportion.models.encoder import Encoder, EncoderConfig
from apportion.training.loop import fit
from apportion.training.recipes import DENSE


@pytest.fixture
def elastic(encoder):
    elastic = Elastic(encoder, length=12, tau=0.7)
    torch.nn.init.normal_(elastic.gates.a)
    return elastic.eval()


@pytest.fixture
def folder(elastic, tmp_path):
    save(Checkpoint(elastic, {"recipes": []}), tmp_path / "model")
    return tmp_path / "model"


def test_an_elastic_checkpoint_reloads(elastic, folder, task):
    loaded = load(folder)
    assert loaded.kind == "elastic"
    assert loaded.notes == {"recipes": []}
    ids = task.test.inputs["input_ids"]
    with torch.no_grad():
        assert torch.equal(loaded.model(ids, budget=0.4), elastic(ids, budget=0.4))
    assert loaded.model.units == elastic.units
    assert not any(part.training for part in loaded.model.modules())


def test_the_order_of_a_nested_model_is_saved(elastic, tmp_path, task):
    nested = elastic.nested(torch.rand(len(elastic.units)))
    save(Checkpoint(nested), tmp_path / "nested")
    loaded = load(tmp_path / "nested").model
    assert loaded.gates.order.tolist() == nested.gates.order.tolist()
    ids = task.test.inputs["input_ids"]
    with torch.no_grad():
        hard = {"budget": 0.4, "form": "hard"}
        assert torch.equal(loaded(ids, **hard), nested(ids, **hard))


def test_a_dense_checkpoint_reloads(encoder, tmp_path):
    save(Checkpoint(encoder), tmp_path / "dense")
    loaded = load(tmp_path / "dense")
    assert loaded.kind == "dense"
    assert weights_digest(loaded.model) == weights_digest(encoder)


def test_saved_cut_model_reloads(encoder, tmp_path, task):
    """In a fresh process too, with a layer that lost all its units."""
    ids = task.test.inputs["input_ids"]
    for number, kinds in enumerate([("heads",), ("heads", "feedforward")]):
        elastic = Elastic(encoder, kinds, length=12, block=32)
        with torch.no_grad():
            elastic.gates.a.copy_(torch.tensor([float(u.layer) for u in elastic.units]))
        smaller, place = elastic.cut(0.5).eval(), tmp_path / f"cut-{number}"
        save(Checkpoint(smaller, {}, elastic.allocation(0.5)), place)
        loaded = load(place)
        assert loaded.kind == "cut"
        with torch.no_grad():
            expected = smaller(ids)
            assert torch.equal(loaded.model(ids), expected)
        torch.save({"ids": ids, "logits": expected}, tmp_path / f"{place.name}.pt")
    script = (
        "import sys, torch; from pathlib import Path; import apportion\n"
        "for there in sorted(Path(sys.argv[1]).glob('cut-?')):\n"
        "    e = torch.load(there.with_suffix('.pt'))\n"
        "    model = apportion.load(there).model\n"
        "    assert torch.equal(model(e['ids']).detach(), e['logits'])\n"
        "    print(there.name)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["cut-0", "cut-1"]


def test_people_can_read_what_was_kept(elastic, tmp_path):
    save(Checkpoint(elastic.cut(0.25), {}, elastic.allocation(0.25)), tmp_path / "cut")
    manifest = json.loads((tmp_path / "cut" / MANIFEST).read_text())
    assert manifest["kept"] == elastic.allocation(0.25).to_dict()
    assert sum(len(layer["heads"]) for layer in manifest["kept"].values()) == 2


def test_there_is_nothing_to_unpickle(folder):
    names = {path.name for path in folder.iterdir()}
    assert names == {MANIFEST, WEIGHTS, GATES, CARD}


@pytest.mark.parametrize("name", [WEIGHTS, GATES])
@pytest.mark.parametrize("keep", [0, 50, -1])
def test_a_truncated_file_is_named(folder, name, keep):
    path = folder / name
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=f"{name} is truncated or was changed"):
        load(folder)


def test_a_changed_byte_is_noticed(folder):
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (folder / WEIGHTS).write_bytes(bytes(data))
    with pytest.raises(ValueError, match="truncated or was changed"):
        load(folder)


def test_a_missing_file_is_named(folder):
    (folder / GATES).unlink()
    with pytest.raises(ValueError, match=r"has no gates\.safetensors"):
        load(folder)


def change(folder, edit):
    manifest = json.loads((folder / MANIFEST).read_text())
    edit(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda m: m.update(version=99), "format version 99; this apportion reads version 1"),
        (lambda m: m.update(format="other"), "not the manifest of an apportion checkpoint"),
        (lambda m: m.pop("files"), "lacks files"),
        (lambda m: m["model"].update(type="bert"), "unknown type 'bert'"),
        (lambda m: m["model"]["config"].update(hidden=32), "weights .* are of another model"),
        (lambda m: m["model"]["config"].update(width=3), "not one of an encoder"),
        (lambda m: m["units"]["runs"].pop(), "lists other units"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(folder, edit, says):
    change(folder, edit)
    with pytest.raises(ValueError, match=says):
        load(folder)


def test_weights_of_another_model_are_refused(folder, tmp_path):
    other = Encoder(EncoderConfig(9, 12, layers=1, heads=2, hidden=8, feedforward=16))
    save(Checkpoint(Elastic(other, length=12)), tmp_path / "other")
    files = json.loads((tmp_path / "other" / MANIFEST).read_text())["files"]
    (tmp_path / "other" / WEIGHTS).replace(folder / WEIGHTS)
    change(folder, lambda m: m["files"].update({WEIGHTS: files[WEIGHTS]}))
    with pytest.raises(ValueError, match=r"of another model than its apportion\.json says"):
        load(folder)


def test_what_is_not_a_checkpoint_is_refused_and_never_overwritten(elastic, tmp_path):
    with pytest.raises(ValueError, match="not a checkpoint"):
        load(tmp_path / "nothing")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="exists and is not a checkpoint"):
        save(Checkpoint(elastic), tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_a_model_that_would_not_reload_is_not_saved(elastic, folder):
    """A cut model has to say what it was cut from, and a good checkpoint stays where it is."""
    before = weights_digest(load(folder).model)
    for model in (elastic.cut(0.5), Elastic(elastic.cut(0.5))):
        with pytest.raises(ValueError, match="give the allocation that it was cut by"):
            save(Checkpoint(model), folder)
    assert weights_digest(load(folder).model) == before


@contextmanager
def no_file_larger_than(size: int):
    """What a full disk does, without filling one: writes past the size fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_last_good_checkpoint(elastic, folder):
    before = weights_digest(load(folder).model)
    torch.nn.init.zeros_(elastic.gates.a)
    with no_file_larger_than(2000), pytest.raises(OSError, match="could not write checkpoint"):
        save(Checkpoint(elastic), folder)
    assert weights_digest(load(folder).model) == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_full_disk_leaves_the_last_good_training_state(encoder, task, tmp_path):
    recipe = DENSE.with_changes(epochs=2, batch_size=32)
    state = tmp_path / "state"
    with pytest.raises(ZeroDivisionError):
        fit(
            encoder,
            task,
            recipe=recipe,
            seed=3,
            state=state,
            save_every=0.0,
            progress=lambda tick: 1 / 0,
        )
    with no_file_larger_than(2000), pytest.raises(OSError, match=r"could not write .*state"):
        fit(encoder, task, recipe=recipe, seed=3, state=state, save_every=0.0)
    assert list(tmp_path.iterdir()) == [state]
    whole = fit(encoder, task, recipe=recipe, seed=3)
    assert weights_digest(
        fit(encoder, task, recipe=recipe, seed=3, state=state).model
    ) == weights_digest(whole.model)


KILLED_AT = """
import os, sys
from pathlib import Path
from apportion.elastic.checkpoint import Checkpoint, load, save
folder, moves = Path(sys.argv[1]), int(sys.argv[2])
checkpoint = load(folder)
checkpoint.model.gates.a.data.fill_(5.0)
rename, done = Path.rename, []
def killed_rename(self, target):
    if len(done) == moves:
        os.kill(os.getpid(), 9)
    done.append(target)
    return rename(self, target)
Path.rename = killed_rename
save(checkpoint, folder)
"""


@pytest.mark.slow
@pytest.mark.parametrize("moves", [0, 1])
def test_a_kill_in_the_middle_of_a_save_loses_nothing(elastic, folder, moves):
    """Killed before anything is in place, and between the two moves that put it there."""
    before = weights_digest(elastic)
    killed = subprocess.run([sys.executable, "-c", KILLED_AT, str(folder), str(moves)], check=False)
    assert killed.returncode == -9
    assert weights_digest(load(folder).model) == before
    save(Checkpoint(elastic), folder)
    assert weights_digest(load(folder).model) == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_link_to_a_checkpoint_is_saved_through(elastic, tmp_path):
    (tmp_path / "link").symlink_to("real")
    for _ in range(3):
        save(Checkpoint(elastic), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert weights_digest(load(tmp_path / "real").model) == weights_digest(elastic)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_a_save_removes_what_its_own_killed_saves_left(elastic, folder):
    """And nothing of a folder whose name begins alike."""
    part = f".999999999-00000000-{'0' * 8}.part"
    for name in ("model", "model.old"):
        (folder.parent / f".{name}{part}").mkdir()
    (folder.parent / ".model.abcd_123.part").mkdir()  # as version 0.1 named them
    save(Checkpoint(elastic), folder)
    assert {path.name for path in folder.parent.iterdir()} == {"model", f".model.old{part}"}


def test_every_file_of_a_checkpoint_has_the_mode_that_the_umask_says(elastic, tmp_path):
    before = os.umask(0o022)
    try:
        save(Checkpoint(elastic), tmp_path / "model")
    finally:
        os.umask(before)
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o755
    assert {p.stat().st_mode & 0o777 for p in (tmp_path / "model").iterdir()} == {0o644}


SAVES = """
import sys, time
from apportion.elastic.checkpoint import load, save
folder = sys.argv[1]
checkpoint = load(folder)
print("ready", flush=True)
sys.stdin.readline()
saves = 0
while saves < 3:
    try:
        save(checkpoint, folder)
        saves += 1
    except OSError as error:
        print(error)
        time.sleep(0.001)
"""


@pytest.mark.slow
def test_two_savers_never_harm_each_other(elastic, folder):
    """One of them is refused, in one sentence; what is there is whole at any moment."""
    command = [sys.executable, "-c", SAVES, str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    savers = [subprocess.Popen(command, text=True, **pipes) for _ in range(2)]
    for saver in savers:
        assert saver.stdout.readline() == "ready\n"
    said = []
    for saver in savers:
        saver.stdin.write("go\n")
        saver.stdin.flush()
    for _ in range(5):
        assert weights_digest(load(folder).model) == weights_digest(elastic)
    for saver in savers:
        out, err = saver.communicate(timeout=120)
        assert saver.returncode == 0, err
        said.append(out.splitlines())
    refused = f"another process is writing {folder}; wait until it ends, or choose another place"
    assert {line for lines in said for line in lines} <= {refused}
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
