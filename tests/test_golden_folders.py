"""Folders that an earlier version wrote: they load, and answer as they did then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import apportion

GOLDEN = Path(__file__).parent / "golden_folders"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text(encoding="utf-8"))
IDS = torch.tensor(EXPECTED["ids"])


def expected(name: str) -> torch.Tensor:
    return torch.tensor(EXPECTED["logits"][name])


@torch.no_grad()
def test_a_checkpoint_answers_as_it_did():
    checkpoint = apportion.load(GOLDEN / "checkpoint")
    model = checkpoint.model
    assert (model.form, model.floor, model.lowest) == ("nested", 1, 0.25)
    assert checkpoint.classes == ["money", "space", "sport"]
    for budget in (0.25, 0.5, 1.0):
        answers = model(input_ids=IDS, budget=budget).logits
        torch.testing.assert_close(answers, expected(f"{budget:g}"))


@torch.no_grad()
@pytest.mark.parametrize("name", ["cut", "self-contained"])
def test_a_cut_model_answers_as_it_did(name):
    checkpoint = apportion.load(GOLDEN / name)
    assert checkpoint.kind == "cut"
    torch.testing.assert_close(checkpoint.model(input_ids=IDS).logits, expected("cut"))


@pytest.mark.slow
def test_a_self_contained_folder_still_loads_without_apportion(tmp_path):
    script = """
import json, sys
sys.modules["apportion"] = None
import torch, transformers
model = transformers.AutoModelForSequenceClassification.from_pretrained(
    sys.argv[1], trust_remote_code=True
).eval()
with torch.no_grad():
    print(json.dumps(model(input_ids=torch.tensor(json.loads(sys.argv[2]))).logits.tolist()))
"""
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(GOLDEN / "self-contained"), json.dumps(EXPECTED["ids"])],
        check=True,
        env=environment,
        capture_output=True,
        text=True,
    )
    torch.testing.assert_close(torch.tensor(json.loads(done.stdout)), expected("cut"))
