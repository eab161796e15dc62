"""One thread in this process, as in the workers; `core_cases` and the tests' own classes can be
imported here and in them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]  # travels to the workers


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", 'slow: takes seconds; leave out with -m "not slow"')


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The tensors are tiny, and sums then come in one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
