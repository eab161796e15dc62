import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """One thread: the models are tiny, and sums then come in one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
