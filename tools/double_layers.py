"""Writes MiniLM with each layer twice, a stand-in for an encoder of twelve layers.

    python tools/double_layers.py FOLDER

Then `apportion run experiments/robust-deep.toml --model FOLDER --data DATA` fine-tunes it.
"""

from __future__ import annotations

import argparse
import copy
import re
from pathlib import Path

from transformers import AutoModel, AutoTokenizer

from apportion.models.hub import find_source

LAYER = re.compile(r"\.layer\.(\d+)\.")


def main() -> None:
    """Every weight of layer n becomes that of layers 2n and 2n + 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    source = find_source("minilm")
    model = AutoModel.from_pretrained(source)
    config = copy.deepcopy(model.config)
    config.num_hidden_layers *= 2
    weights = {}
    for name, values in model.state_dict().items():
        found = LAYER.search(name)
        for copied in (0, 1) if found else (0,):
            number = f".layer.{2 * int(found[1]) + copied}." if found else ""
            weights[LAYER.sub(number, name)] = values.clone()
    deeper = type(model)(config)
    deeper.load_state_dict(weights)
    deeper.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)


if __name__ == "__main__":
    main()
