from __future__ import annotations

import os

# Before torch is imported, and for the processes that tests start: one thread each, since results
# are the same to the bit only for the same number of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch
from hypothesis import HealthCheck, settings

from apportion.data.marked import Marked
from apportion.data.task import Task
from apportion.models.encoder import Encoder, EncoderConfig

# A busy machine is slow, not wrong.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

TINY = {"layers": 2, "heads": 4, "hidden": 16, "feedforward": 64}


@pytest.fixture(autouse=True)
def _one_thread_and_a_fixed_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def task() -> Task:
    return Marked(length=12, values=4, distractors=2, train=128, validation=64, test=64).build()


@pytest.fixture
def encoder(task: Task) -> Encoder:
    return Encoder(EncoderConfig(task.vocabulary, task.length, **TINY)).eval()
