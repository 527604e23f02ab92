"""Requests that nobody should send: no 500, no traceback, no hang."""

from __future__ import annotations

import asyncio

import pytest
from fuzzing import fuzz


@pytest.mark.parametrize(
    "count", [150, pytest.param(6000, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_spoilt_requests_get_an_error_of_their_dialect(count):
    statuses, wrong = asyncio.run(fuzz(count, seed=1))
    assert wrong == []
    assert statuses[200] and statuses[422] and statuses[400]
