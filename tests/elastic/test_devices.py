"""What has to work on a device that has no float64."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # a process that trains with every operation looked at


@pytest.fixture(scope="module")
def facts():
    """From a process of its own, since a device can't be taken away again."""
    script = Path(__file__).parents[1] / "support" / "on_a_device.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_device_of_these_tests_refuses_float64_and_tensors_of_the_cpu(facts):
    assert facts["refused"] == [
        "the device single has no float64",
        "the device single has no float64",
        "aten.add.Tensor: some tensors are on the device single, and others are not",
    ]


@pytest.mark.parametrize("recipe", ["dense", "budgeted", "adapt", "nested"])
def test_training_ends_where_it_ends_on_the_cpu(facts, recipe):
    assert facts["trained"][recipe] == pytest.approx(0.0, abs=1e-5)


def test_a_hard_mask_is_the_one_of_the_cpu(facts):
    here, there = facts["hard"]
    assert here == pytest.approx(there, abs=1e-5)


@pytest.mark.parametrize("score", ["loss_increase", "squared_gradient"])
def test_scores_are_those_of_the_cpu(facts, score):
    here, there = facts["scores"][score]
    assert here == pytest.approx(there, abs=1e-5)


def test_repaired_weights_are_those_of_the_cpu(facts):
    assert facts["repaired"] == pytest.approx(0.0, abs=1e-4)
