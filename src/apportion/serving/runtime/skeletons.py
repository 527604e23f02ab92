"""Skeletons: what stands around the sites of a classifier, one row per architecture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from apportion.models.shrinking import CUT_TYPE


@dataclass(frozen=True)
class Skeleton:
    """Paths of the parts around the sites: norms from a layer, the others from the model."""

    embeddings: str
    attention_norm: str
    output_norm: str
    head: tuple[tuple[str, str], ...]  # linear layers over token 0, and what each is followed by
    types: bool = True  # whether it reads token_type_ids
    counts_padding: bool = False  # whether positions begin after the one of padding


_BERT = Skeleton(
    embeddings="embeddings",
    attention_norm="attention.output.LayerNorm",
    output_norm="output.LayerNorm",
    head=(("bert.pooler.dense", "Tanh"), ("classifier", "")),
)
_ROBERTA = Skeleton(
    embeddings="embeddings",
    attention_norm="attention.output.LayerNorm",
    output_norm="output.LayerNorm",
    head=(("classifier.dense", "Tanh"), ("classifier.out_proj", "")),
    types=False,
    counts_padding=True,
)
SKELETONS: dict[str, Skeleton] = {
    "bert": _BERT,
    "electra": Skeleton(
        embeddings="embeddings",
        attention_norm="attention.output.LayerNorm",
        output_norm="output.LayerNorm",
        head=(("classifier.dense", "Gelu"), ("classifier.out_proj", "")),
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "distilbert": Skeleton(
        embeddings="embeddings",
        attention_norm="sa_layer_norm",
        output_norm="output_layer_norm",
        head=(("pre_classifier", "Relu"), ("classifier", "")),
        types=False,
    ),
}


def skeleton_of(model: nn.Module) -> Skeleton:
    """The skeleton of a model, if its architecture has one here."""
    kind = getattr(model.config, "model_type", "").removeprefix(CUT_TYPE)
    if kind not in SKELETONS or not type(model).__name__.endswith("ForSequenceClassification"):
        raise ValueError(
            f"{type(model).__name__} can't be exported; classifiers of texts can, of "
            f"{', '.join(sorted(SKELETONS))}"
        )
    return SKELETONS[kind]


def activation_of(model: nn.Module) -> str:
    """The operator of the activation between feed-forward layers, if the graph has it."""
    config: Any = model.config
    name = getattr(config, "hidden_act", None) or config.activation
    known = {"gelu": "BiasGelu", "relu": "Relu"}
    if name not in known:
        raise ValueError(f"feed-forward layers with {name} can't be exported; gelu and relu can")
    return known[name]
