"""Freed memory is kept while training, and no number changes for it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from apportion.training.allocator import LEFT_ALONE

# Dense training of a small encoder; says whether the allocator was asked, and what came out.
SCRIPT = """
from apportion import fit, recipe
from apportion.training.allocator import keep_freed_memory
from apportion.models.encoder import Encoder, EncoderConfig
from apportion.elastic.checkpoint import weights_digest
from apportion.data.marked import Marked
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
task = Marked(length=12, values=4, distractors=2, train=128, validation=32, test=32).build()
model = Encoder(EncoderConfig(task.vocabulary, task.length, layers=2, heads=4, hidden=16))
print(weights_digest(fit(model, task, recipe=recipe("dense", epochs=2), seed=7).model))
print(keep_freed_memory.cache_info().misses, keep_freed_memory())
"""


def trained(**environment: str) -> list[str]:
    clean = {name: value for name, value in os.environ.items() if name != LEFT_ALONE}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**clean, **environment}
    )
    return done.stdout.splitlines()


@pytest.mark.slow
def test_training_asks_for_it_and_computes_the_same_without():
    digest, asked = trained()
    assert asked.split()[0] == "1"  # `fit` had asked
    assert trained(**{LEFT_ALONE: "1"}) == [digest, "1 False"]
    if platform.libc_ver()[0] == "glibc":
        assert asked == "1 True"


@pytest.mark.parametrize("libc", ["", "musl"])
def test_other_c_libraries_are_left_alone(libc, monkeypatch):
    from apportion.training import allocator

    monkeypatch.setattr(allocator.platform, "libc_ver", lambda: (libc, ""))
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: pytest.fail("asked"))
    assert allocator.keep_freed_memory.__wrapped__() is False
