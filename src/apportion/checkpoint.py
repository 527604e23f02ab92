"""Checkpoints: folders of safetensors and JSON that are read without running anything from them.

    apportion.json       what it is: format, kind, the model's shape, its units, where it came from,
                         and the size and SHA-256 of each file beside it
    model.safetensors    the model's weights, under the model's own names
    gates.safetensors    a and s of the gates, and the order of the units where it is fixed
                         (elastic checkpoints only)
    config.json          the model's config as Transformers writes it (its models only)
    tokenizer.json       the words, as the tokenizers library writes them (tasks of texts only)
    tokenizer_config.json  what Transformers needs to read them (pretrained models only)
    README.md            the model's card, for people; it may be edited

A folder is written beside its place and moved there whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from apportion.backbones import build, config_of
from apportion.backbones.classes import CLASSIFIES, class_names
from apportion.backbones.encoder import Encoder, EncoderConfig
from apportion.backbones.hub import read_json, words_of_folder
from apportion.backbones.reloading import RECORD, carry_code, kept_of, load_folder
from apportion.card import model_card
from apportion.elastic import Elastic, plain_of
from apportion.sites import find_sites, units_of
from apportion.state import save_tensors
from apportion.surgery import cut
from apportion.tasks.words import Words
from apportion.units import Allocation, Units

FORMAT = "apportion-checkpoint"
VERSION = 1
MANIFEST = "apportion.json"
WEIGHTS = "model.safetensors"
GATES = "gates.safetensors"
CONFIG = "config.json"
WORDS = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
CARD = "README.md"
KINDS_OF_CHECKPOINT = ("dense", "elastic", "cut")


@dataclass(frozen=True)
class Checkpoint:
    """A model with its story: the task's spec, the recipes it went through, what a cut kept."""

    model: nn.Module
    notes: dict[str, Any] = field(default_factory=dict)
    kept: Allocation | None = None  # of the model that this one was cut from
    words: Words | None = None  # what turns texts into the model's inputs

    @property
    def kind(self) -> str:
        """elastic (with gates), cut, or dense."""
        if isinstance(self.model, Elastic):
            return "elastic"
        return "cut" if self.kept is not None else "dense"

    @property
    def length(self) -> int:
        """Tokens in a text, at which its compute is counted."""
        if isinstance(self.model, Elastic):
            return self.model.length
        config = plain_of(self.model).config
        return int(self.words.length if self.words else getattr(config, "length", 128))

    @property
    def classes(self) -> list[str] | None:
        """The names of its classes, if it says them."""
        plain = plain_of(self.model)
        if "classes" in self.notes or not type(plain).__name__.endswith(CLASSIFIES):
            return self.notes.get("classes")
        return class_names(plain.config)


def save(
    checkpoint: Checkpoint | nn.Module, folder: str | Path, self_contained: bool = False
) -> None:
    """Writes a checkpoint folder whole or not at all; one that is there already is replaced.

    With `self_contained`, a cut model of Transformers has its code beside it, and loads with
    `trust_remote_code=True` where apportion is not installed.
    """
    if isinstance(checkpoint, nn.Module):
        checkpoint = Checkpoint(checkpoint, kept=kept_of(checkpoint))
    folder = Path(folder)
    if folder.exists() and not (folder / MANIFEST).exists():
        raise ValueError(f"{folder} exists and is not a checkpoint; choose another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    for stale in folder.parent.glob(f".{folder.name}.*.part"):
        shutil.rmtree(stale, ignore_errors=True)  # of a save that was killed
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
    try:
        _write(checkpoint, part, self_contained)
        part.chmod(0o755)
        previous = _previous(folder)
        if folder.exists():
            # Between these two moves `load` finds the previous folder, so a kill loses nothing.
            shutil.rmtree(previous, ignore_errors=True)
            folder.rename(previous)
        part.rename(folder)
        shutil.rmtree(previous, ignore_errors=True)
    except OSError as error:
        raise OSError(f"could not write checkpoint {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def load(folder: str | Path) -> Checkpoint:
    """The checkpoint in a folder; every file is checked against its recorded hash.

    A folder that Transformers wrote will do as well, of a whole model or of a cut one.
    """
    folder = _present(Path(folder))
    if not (folder / MANIFEST).exists() and (folder / CONFIG).exists():
        model, kept = load_folder(folder)
        return Checkpoint(model, {}, kept, words_of_folder(folder))
    manifest = read_manifest(folder)
    try:
        return _read(manifest, folder)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / MANIFEST} is damaged: {error!r}") from None


def _read(manifest: Mapping[str, Any], folder: Path) -> Checkpoint:
    kind = manifest["kind"]
    needed = {WEIGHTS, *([GATES] if kind == "elastic" else [])}
    for name in sorted(needed | set(manifest["files"])):
        facts = manifest["files"][name]
        path = folder / name
        if not path.exists():
            raise ValueError(f"checkpoint {folder} has no {name}; it is not complete")
        if path.stat().st_size != facts["bytes"] or _sha256(path) != facts["sha256"]:
            raise ValueError(
                f"{path} is truncated or was changed: it is not the file that was saved"
            )
    model = build(read_config(manifest, folder))
    kept = None
    if kind == "cut":
        kept = Allocation.from_dict(Units.from_dict(manifest["units"]), manifest["kept"])
        if not hasattr(model.config, RECORD):  # or it was built in its sizes
            model = cut(model, kept)
    _load_weights(model, load_file(folder / WEIGHTS), folder)
    if kind == "elastic":
        facts = manifest["elastic"]
        model = Elastic(model, facts["kinds"], facts["length"], facts["tau"], facts["block"])
        if model.units.to_dict() != manifest["units"]:
            raise ValueError(f"checkpoint {folder} lists other units than its model has")
        gates = load_file(folder / GATES)
        if "order" in gates:
            model.gates.fix_order(gates["order"])
        _load_weights(model.gates, gates, folder)
    words = None
    if WORDS in manifest["files"]:
        settings = read_json(folder / SETTINGS) if SETTINGS in manifest["files"] else None
        words = Words.from_json((folder / WORDS).read_text(encoding="utf-8"), settings)
    return Checkpoint(model.eval(), dict(manifest["notes"]), kept, words)


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """What a checkpoint says of itself, without its weights."""
    path = _present(Path(folder)) / MANIFEST
    if not path.exists():
        raise ValueError(f"{folder} is not a checkpoint: it has no {MANIFEST}")
    manifest = read_json(path)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(f"{path} is not the manifest of an apportion checkpoint")
    if manifest.get("version") != VERSION:
        raise ValueError(
            f"{folder} is a checkpoint of format version {manifest.get('version')}; "
            f"this apportion reads version {VERSION}"
        )
    missing = {"kind", "model", "units", "files", "notes"} - set(manifest)
    if missing:
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}")
    if manifest["kind"] not in KINDS_OF_CHECKPOINT:
        raise ValueError(f"{path} is of unknown kind {manifest['kind']!r}")
    return manifest


def read_config(manifest: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What a checkpoint's model is built from: its own values, or those in config.json."""
    model = manifest["model"]
    if CONFIG in manifest["files"]:
        return dict(read_json(folder / CONFIG))
    if model["type"] != EncoderConfig.model_type:
        raise ValueError(f"{folder} holds a model of unknown type {model['type']!r}")
    return {"model_type": model["type"], **model["config"]}


def has_checkpoint(folder: Path) -> bool:
    """Whether there is a checkpoint in a folder, whole or not."""
    return (_present(folder) / MANIFEST).exists()


def weights_digest(model: nn.Module) -> str:
    """A short hash of a model's weights: what a record names as its weights."""
    sha = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        sha.update(name.encode())
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        sha.update(data.numpy().tobytes())
    return sha.hexdigest()[:16]


def _write(checkpoint: Checkpoint, folder: Path, self_contained: bool) -> None:
    model = checkpoint.model
    plain = plain_of(model)
    config = config_of(plain)
    _check_shape(plain, config, checkpoint.kept)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "kind": checkpoint.kind,
        "model": {"type": config["model_type"]},
        "notes": checkpoint.notes,
    }
    if self_contained:
        config = carry_code(config, folder)
    if isinstance(plain, Encoder):
        manifest["model"]["config"] = plain.config.to_dict()
    else:
        _write_json(config, folder / CONFIG)
    save_tensors(plain.state_dict(), folder / WEIGHTS)
    if isinstance(model, Elastic):
        manifest["elastic"] = {
            "kinds": list(model.kinds),
            "length": model.length,
            "tau": model.gates.tau,
            "block": model.block,
        }
        manifest["units"] = model.units.to_dict()
        save_tensors(model.gates.state_dict(), folder / GATES)
    elif checkpoint.kept is not None:
        manifest["units"] = checkpoint.kept.units.to_dict()
        manifest["kept"] = checkpoint.kept.to_dict()
    else:
        sites = find_sites(plain, ("heads",))
        manifest["units"] = units_of(sites, checkpoint.length).to_dict()
    if checkpoint.words is not None:
        (folder / WORDS).write_text(checkpoint.words.to_json(), encoding="utf-8")
        if checkpoint.words.settings is not None:
            _write_json(checkpoint.words.settings, folder / SETTINGS)
    manifest["files"] = {
        path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(folder.iterdir())
    }
    _write_json(manifest, folder / MANIFEST)
    card = model_card(model, checkpoint.notes, checkpoint.kept, checkpoint.length)
    (folder / CARD).write_text(card, encoding="utf-8")
    for written in folder.iterdir():
        with written.open("rb+") as file:
            os.fsync(file.fileno())


def _check_shape(plain: nn.Module, config: Mapping[str, Any], kept: Allocation | None) -> None:
    """Refuses a model that its config, with what was kept, would not rebuild."""
    with torch.device("meta"):
        rebuilt = build(config)
    if kept is not None and RECORD not in config:
        rebuilt = cut(rebuilt, kept)
    for site, whole in zip(find_sites(plain, block=1), find_sites(rebuilt, block=1), strict=True):
        if site.count != whole.count:
            raise ValueError(
                f"layer {site.layer} has {site.count} {site.kind}, not {whole.count}: to save a "
                "cut model, give the allocation that it was cut by as `kept`"
            )


def _load_weights(module: nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    expected = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    if expected != found:
        odd = sorted(set(expected.items()) ^ set(found.items()))[0][0]
        raise ValueError(
            f"the weights in {folder} are of another model than its {MANIFEST} says: "
            f"{odd} is {found.get(odd, 'missing')}, expected {expected.get(odd, 'none')}"
        )
    module.load_state_dict(dict(weights))


def _write_json(values: Mapping[str, Any], path: Path) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _previous(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.previous")


def _present(folder: Path) -> Path:
    """The folder, or the one that it was to replace if a kill fell between the two moves."""
    return folder if folder.exists() or not _previous(folder).exists() else _previous(folder)


def _sha256(path: Path) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            sha.update(chunk)
    return sha.hexdigest()
