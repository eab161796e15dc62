"""The style that figures are drawn in."""

from __future__ import annotations

import pytest

from paper_figures import style


@pytest.fixture(autouse=True)
def _style() -> None:
    style.apply()
