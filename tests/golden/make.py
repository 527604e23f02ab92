"""Makes the golden files: small models whose heads Transformers 4.54.0 pruned, and their logits.

    pip install torch==2.13.0 transformers==4.54.0
    python tests/golden/make.py

Each folder holds the pruned model as `save_pretrained` wrote it, its weights before that
(`whole.safetensors`), and an input with the logits of both (`expected.json`).
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForSequenceClassification

HOME = Path(__file__).parent
PRUNED = {0: [1, 3], 1: [0, 1, 2]}
BERT = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 8,
    "intermediate_size": 16,
    "vocab_size": 12,
    "max_position_embeddings": 12,
    "num_labels": 3,
}
SHAPES = {
    "bert": BERT,
    "electra": {**BERT, "embedding_size": 8},
    "roberta": {**BERT, "pad_token_id": 0},
    "distilbert": {
        "n_layers": 2,
        "n_heads": 4,
        "dim": 8,
        "hidden_dim": 16,
        "vocab_size": 12,
        "max_position_embeddings": 12,
        "num_labels": 3,
    },
}


def main() -> None:
    """Writes a folder for each architecture."""
    assert transformers.__version__ == "4.54.0", transformers.__version__
    inputs = {
        "input_ids": [[2, 5, 7, 11, 3, 4], [2, 9, 3, 0, 0, 0]],
        "attention_mask": [[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]],
    }
    tensors = {name: torch.tensor(values) for name, values in inputs.items()}
    for name, shape in SHAPES.items():
        torch.manual_seed(11)
        config = AutoConfig.for_model(name, **shape)
        model = AutoModelForSequenceClassification.from_config(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)  # as large as trained ones
            whole = {key: value.clone() for key, value in model.state_dict().items()}
            before = model(**tensors).logits
            model.prune_heads(PRUNED)
            after = model(**tensors).logits
        folder = HOME / name
        model.save_pretrained(folder)
        save_file(whole, folder / "whole.safetensors")
        facts = {"inputs": inputs, "whole": before.tolist(), "pruned": after.tolist()}
        (folder / "expected.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
