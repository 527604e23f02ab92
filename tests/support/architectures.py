"""A small model of every architecture."""

from __future__ import annotations

import torch
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
)

from apportion.elastic.elastic import logits_of
from apportion.models.encoder import Encoder, EncoderConfig

SHAPE = {"layers": 3, "heads": 4, "hidden": 32, "feedforward": 128}
OURS = {
    ("apportion-encoder", variant): lambda options=options: Encoder(
        EncoderConfig(20, 10, 3, **SHAPE, **options)
    )
    for variant, options in {
        "pre-norm": {},
        "post-norm": {"norm": "post", "pool": "mean"},
        "learned positions": {"positions": "learned"},
    }.items()
}
BERT_SHAPE = {
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "hidden_size": 32,
    "intermediate_size": 128,
    "vocab_size": 20,
    "max_position_embeddings": 16,
    "num_labels": 3,
}
SHAPES = {
    "bert": BERT_SHAPE,
    "electra": {**BERT_SHAPE, "embedding_size": 32},
    "roberta": {**BERT_SHAPE, "pad_token_id": 1},
    "xlm-roberta": {**BERT_SHAPE, "pad_token_id": 1},
    "distilbert": {
        "n_layers": 3,
        "n_heads": 4,
        "dim": 32,
        "hidden_dim": 128,
        "vocab_size": 20,
        "max_position_embeddings": 16,
        "num_labels": 3,
    },
    "vit": {**BERT_SHAPE, "image_size": 12, "patch_size": 4},  # 9 patches and the class: 10 tokens
}


def from_transformers(name, kernel, **shape):
    config = AutoConfig.for_model(name, **{**SHAPES[name], **shape})
    auto = AutoModelForImageClassification if name == "vit" else AutoModelForSequenceClassification
    model = auto.from_config(config, attn_implementation=kernel)
    with torch.no_grad():
        # Weights as large as trained ones are, so that a head that is lost is seen.
        for parameter in model.parameters():
            parameter.normal_(std=0.3) if parameter.dim() > 1 else None
    return model


def ask(model, inputs, **options):
    """The logits of a model, whatever it wraps them in."""
    return logits_of(model(**inputs, **options))
