"""The table of claims, as a figure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper_figures import style
from paper_figures.material import Material
from paper_figures.style import MUTED, TEXT_WIDTH, VERDICTS
from reproduce.claims import Claim, Finding

LINE = style.SMALL * 1.35 / 72
"""Inches from one line of text to the next"""
CHARACTER = style.SMALL * 0.56 / 72
"""Inches, on average"""
COLUMNS = {"what": (0.2, 2.3), "measured": (2.6, 2.35), "paper": (5.05, 1.9)}
"""Left edge and width of a finding's texts, inches"""


@dataclass(frozen=True)
class Block:
    """Wrapped texts of one finding or of a claim's head, and the lines that they take."""

    claim: Claim
    finding: Finding | None
    texts: dict[str, str]

    @property
    def height(self) -> float:
        lines = max(text.count("\n") + 1 for text in self.texts.values())
        return LINE * (lines + (0.45 if self.finding else 0.9))


def claims_table(material: Material) -> Figure:
    """Each claim with its verdict, and under it the findings that the verdict follows from."""
    blocks = list(_blocks(material.claims))
    height = sum(block.height for block in blocks) + LINE * 1.6
    figure = Figure(figsize=(TEXT_WIDTH, height))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, TEXT_WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    for name, (left, _) in COLUMNS.items():
        title = {"what": "claim and findings", "paper": "the paper (seed)"}.get(name, name)
        axes.text(left, 0.05, title, va="top", fontsize=style.SMALL, color=MUTED)
    top = LINE * 1.6
    for block in blocks:
        _draw(axes, block, top)
        top += block.height
    return figure


def _blocks(claims: list[Claim]) -> Iterator[Block]:
    for claim in claims:
        statement = f"{claim.id}  {claim.statement}"
        yield Block(claim, None, {"what": _wrapped(statement, 4.9, bold=True)})
        for finding in claim.findings:
            if finding.verdict is not None:
                texts = {"what": finding.what, "measured": finding.brief, "paper": finding.paper}
                yield Block(
                    claim, finding, {k: _wrapped(v, COLUMNS[k][1]) for k, v in texts.items()}
                )
        if claim.missing:
            text = f"to run for more: {'; '.join(claim.missing)}"
            yield Block(claim, Finding("", "", ""), {"what": _wrapped(text, 6.5)})


def _wrapped(text: str, width: float, bold: bool = False) -> str:
    """The text in lines of so many inches."""
    characters = int(width / (CHARACTER * (1.1 if bold else 1.0)))
    return textwrap.fill(text, characters, break_on_hyphens=False)


def _draw(axes: Axes, block: Block, top: float) -> None:
    if block.finding is None:
        axes.axhline(top, color="#bbbbbb", lw=0.6)
        top += LINE * 0.35
        mark, colour = VERDICTS[block.claim.verdict]
        said: dict[str, Any] = {
            "va": "top",
            "fontsize": style.SMALL,
            "fontweight": "bold",
            "linespacing": 1.3,
        }
        axes.text(0.06, top, block.texts["what"], **said)
        said |= {"ha": "right", "color": colour}
        axes.text(TEXT_WIDTH - 0.06, top, f"{mark} {block.claim.verdict}", **said)
        return
    if block.finding.verdict is not None:
        mark, colour = VERDICTS[block.finding.verdict]
        axes.text(0.06, top, mark, va="top", fontsize=style.SMALL, color=colour)
    for name, text in block.texts.items():
        axes.text(
            COLUMNS[name][0], top, text, va="top", fontsize=style.SMALL, linespacing=1.3,
            color="#222222" if block.finding.verdict else MUTED,
        )  # fmt: skip
