"""One look for every figure: seaborn, colour-blind-safe, legible at column width."""

from __future__ import annotations

import os
from pathlib import Path

import matplotlib
import seaborn

matplotlib.use("Agg")

PALETTE = seaborn.color_palette("colorblind")
FORWARD, BACKWARD = PALETTE[0], PALETTE[1]
TEXT_WIDTH = 7.0
"""Inches"""


def apply() -> None:
    """Set the style for all that is drawn from here on."""
    seaborn.set_theme(style="white", context="paper", font="DejaVu Sans")
    matplotlib.rcParams.update({"savefig.dpi": 200, "pdf.fonttype": 42, "svg.hashsalt": "figures"})


def folder() -> Path:
    """Where figures go: `figures` in the results folder."""
    path = Path(os.environ.get("REPRODUCE_RESULTS", "results")) / "figures"
    path.mkdir(parents=True, exist_ok=True)
    return path
