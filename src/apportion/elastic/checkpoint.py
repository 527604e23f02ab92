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
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from apportion.data.task import CLASSIFICATION
from apportion.data.tokenizer import Tokenizer
from apportion.elastic.card import model_card
from apportion.elastic.consistency import (
    check_answer,
    check_finite,
    check_notes,
    check_words,
)
from apportion.elastic.elastic import Elastic, plain_of
from apportion.elastic.restoring import (
    CARD,
    FORMAT,
    GATES,
    MANIFEST,
    SETTINGS,
    VERSION,
    WORDS,
    cut_as,
    restore,
)
from apportion.elastic.restoring import read_manifest as _read_manifest
from apportion.files import (
    holding,
    json_text,
    part_of,
    present,
    previous_of,
    put,
    resolved,
    sha256,
)
from apportion.method.units import Allocation, Units
from apportion.models.configs import build, config_of
from apportion.models.encoder import Encoder
from apportion.models.hub import tokenizer_of_folder
from apportion.models.labels import CLASSIFIES, class_names
from apportion.models.reloading import carry_code, kept_of, load_folder
from apportion.models.sites import find_sites, units_of
from apportion.models.sizes import CONFIG, WEIGHTS
from apportion.tensor_files import save_tensors


@dataclass(frozen=True)
class Checkpoint:
    """A model with its story: the task's spec, the recipes it went through, what a cut kept."""

    model: nn.Module
    notes: dict[str, Any] = field(default_factory=dict)
    kept: Allocation | None = None  # of the model that this one was cut from
    words: Tokenizer | None = None  # what turns texts into the model's inputs

    @property
    def elastic(self) -> Elastic | None:
        """The model, if it has budgets."""
        return self.model if isinstance(self.model, Elastic) else None

    @property
    def plain(self) -> nn.Module:
        """The model, or the one inside an elastic one."""
        return plain_of(self.model)

    @property
    def kind(self) -> str:
        """elastic (with gates), cut, or dense."""
        if self.elastic is not None:
            return "elastic"
        return "cut" if self.kept is not None else "dense"

    @property
    def length(self) -> int:
        """Tokens in a text, at which its compute is counted."""
        if self.elastic is not None:
            return self.elastic.length
        config: Any = self.plain.config
        return int(self.words.length if self.words else getattr(config, "length", 128))

    @property
    def classes(self) -> list[str] | None:
        """The names of its classes, if it has any; a model that does not classify is refused."""
        CLASSIFICATION.check(self.plain)
        if "classes" in self.notes or not type(self.plain).__name__.endswith(CLASSIFIES):
            return self.notes.get("classes")
        return class_names(self.plain.config)

    def require_elastic(self) -> Elastic:
        """Its model, if that has budgets; else an error."""
        if self.elastic is None:
            raise ValueError(f"a {self.kind} checkpoint has no gates, so it has no budgets")
        return self.elastic

    def cut(self, budget: float, floor: int | None = None) -> Checkpoint:
        """The smaller plain model that a budget buys, with the notes that are true of it."""
        model = self.require_elastic()
        floor = model.floor if floor is None else floor
        kept = model.allocation(budget, floor)
        notes = {**self.notes, "cut": {"budget": budget, "floor": floor, "cost": kept.cost}}
        if "measured" in notes:
            # Other units stay with another floor than it was measured with.
            points = notes["measured"] if floor == model.floor else []
            notes["measured"] = [p for p in points if p["budget"] == budget and p["form"] != "soft"]
        return Checkpoint(model.cut(budget, floor), notes, kept, self.words)


def save(
    checkpoint: Checkpoint | nn.Module, folder: str | Path, *, self_contained: bool = False
) -> None:
    """Writes a checkpoint folder whole or not at all; one that is there already is replaced.

    If another process is writing the same folder, this one is refused.
    With `self_contained`, a cut model of Transformers has its code beside it, and loads with
    `trust_remote_code=True` where apportion is not installed.
    """
    if isinstance(checkpoint, nn.Module):
        checkpoint = Checkpoint(checkpoint, kept=kept_of(checkpoint))
    folder = resolved(Path(folder))
    with holding(folder) as alone:
        if folder.exists() and not (folder / MANIFEST).exists():
            raise ValueError(f"{folder} exists and is not a checkpoint; choose another folder")
        try:
            with part_of(folder, alone) as part:
                part.mkdir()
                _write(checkpoint, part, self_contained)
                put(part, folder)
        except OSError as error:
            reason = error.strerror or error
            raise OSError(f"could not write checkpoint {folder}: {reason}") from error


def load(folder: str | Path) -> Checkpoint:
    """The checkpoint in a folder; every file is checked against its recorded hash.

    A folder that Transformers wrote will do as well, of a whole model or of a cut one.
    """
    folder = Path(folder)
    while True:
        before = _identities(folder)
        try:
            return _load(present(folder))
        except (ValueError, OSError):
            if _identities(folder) == before:
                raise
            # It was replaced by another save while it was read.


def _identities(folder: Path) -> list[tuple[int, int, int] | None]:
    """What tells the folder, and the one that it replaces, from those of another save."""
    found: list[tuple[int, int, int] | None] = []
    for path in (folder, previous_of(folder)):
        try:
            status = path.stat()
        except OSError:
            found.append(None)
        else:  # the number of a folder that was removed is soon given to another one
            found.append((status.st_dev, status.st_ino, status.st_ctime_ns))
    return found


def _load(folder: Path) -> Checkpoint:
    if not os.path.lexists(folder / MANIFEST) and (folder / CONFIG).exists():
        if (folder / GATES).exists():
            raise ValueError(f"{folder} has {GATES} and no {MANIFEST}; it is not complete")
        model, kept = load_folder(folder)
        words, notes = tokenizer_of_folder(folder), {}
    else:
        manifest = _read_manifest(folder)
        try:
            model, kept, words = restore(manifest, folder)
        except (AttributeError, KeyError, TypeError, IndexError, AssertionError) as error:
            raise ValueError(f"{folder / MANIFEST} is damaged: {error!r}") from None
        notes = dict(manifest["notes"])
    try:
        check_finite(model.state_dict(), "the model")
        check_notes(notes, model)
        if words is not None:
            check_words(words, model)
        check_answer(model, words)
    except ValueError as error:
        raise ValueError(f"the parts of {folder} do not fit each other: {error}") from None
    return Checkpoint(model, notes, kept, words)


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """What a checkpoint says of itself, without its weights."""
    return _read_manifest(present(Path(folder)))


def has_checkpoint(folder: Path) -> bool:
    """Whether there is a checkpoint in a folder, whole or not."""
    return (present(folder) / MANIFEST).exists()


def limit(model: nn.Module, floor: int, lowest: float) -> None:
    """Sets the floor and the smallest budget of an elastic model; its form stays."""
    if isinstance(model, Elastic):
        model.made_for(model.form, floor, lowest=lowest)


def weights_digest(model: nn.Module) -> str:
    """A short hash of a model's weights: what a record names as its weights."""
    return weights_sha256(model)[:16]


def weights_sha256(model: nn.Module) -> str:
    """The hash of a model's weights, by their names and values."""
    sha = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        sha.update(name.encode())
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        sha.update(data.numpy().tobytes())
    return sha.hexdigest()


def _write(checkpoint: Checkpoint, folder: Path, self_contained: bool) -> None:
    plain, elastic = checkpoint.plain, checkpoint.elastic
    config = config_of(plain)
    _check_shape(plain, config, checkpoint.kept)
    check_finite(checkpoint.model.state_dict(), "the model")
    check_notes(checkpoint.notes, plain)
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
    if elastic is not None:
        manifest["elastic"] = {
            "kinds": list(elastic.kinds),
            "length": elastic.length,
            "tau": elastic.gates.tau,
            "block": elastic.block,
            # Only where it is so: folders that were written before have no such word.
            **({"first_token": True} if elastic.first_token else {}),
            **({"frontier": elastic.frontier.to_dict()} if elastic.frontier else {}),
            **elastic.made_as,
        }
        manifest["units"] = elastic.units.to_dict()
        save_tensors(elastic.gates.state_dict(), folder / GATES)
    elif checkpoint.kept is not None:
        manifest["units"] = checkpoint.kept.units.to_dict()
        manifest["kept"] = checkpoint.kept.to_dict()
        if checkpoint.kept.short_costs is not None:
            short = Units(checkpoint.kept.units.members, checkpoint.kept.short_costs)
            manifest["short_units"] = short.to_dict()
    else:
        sites = find_sites(plain, ("heads",))
        manifest["units"] = units_of(sites, checkpoint.length).to_dict()
    if checkpoint.words is not None:
        (folder / WORDS).write_text(checkpoint.words.to_json(), encoding="utf-8")
        if checkpoint.words.settings is not None:
            _write_json(checkpoint.words.settings, folder / SETTINGS)
    manifest["files"] = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.iterdir())
    }
    _write_json(manifest, folder / MANIFEST)
    card = model_card(
        plain,
        checkpoint.notes,
        elastic=elastic,
        kept=checkpoint.kept,
        length=checkpoint.length,
    )
    (folder / CARD).write_text(card, encoding="utf-8")


def _check_shape(plain: nn.Module, config: Mapping[str, Any], kept: Allocation | None) -> None:
    """Refuses a model that its config, with what was kept, would not rebuild."""
    with torch.device("meta"):
        rebuilt = cut_as(config, build(config), kept)
    for site, whole in zip(find_sites(plain, block=1), find_sites(rebuilt, block=1), strict=True):
        if site.count != whole.count:
            raise ValueError(
                f"layer {site.layer} has {site.count} {site.kind}, not {whole.count}: to save a "
                "cut model, give the allocation that it was cut by as `kept`"
            )


def _write_json(values: Mapping[str, Any], path: Path) -> None:
    path.write_text(json_text(values, path.name), encoding="utf-8")
