"""What tests of the harness, the claims and the figures share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The results folder of this test, not made yet; the store is the one that would be in it."""
    folder = tmp_path / "results"
    monkeypatch.setenv("REPRODUCE_RESULTS", str(folder))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return folder
