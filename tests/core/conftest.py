"""One thread in this process, as in the workers; `core_cases` importable here and in them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # travels to the workers


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The tensors are tiny, and sums then come in one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
