"""What figures are drawn from: a table's records, the theory's, and what is not there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import pandas as pd
from pandas import DataFrame

from reproduce import export
from reproduce.claims import Claim, claims
from reproduce.claims.alike import varied
from reproduce.records import Records
from reproduce.tables import Table
from reproduce.tracking import results_folder

NAMED = 6
"""Cells that a note names one by one; of the rest it tells the number"""


class Missing(Exception):
    """A figure has nothing to show; the message says what it would need."""


class Material:
    """A table and its records, which are read when a figure first asks for them.

    Raises:
        BadInput: (`records`) the table has no finished run.
        Missing: (`theory`) there is no theory.csv.
    """

    def __init__(self, table: Table, records: Records | None = None) -> None:
        self.table = table
        self._records = records

    @cached_property
    def records(self) -> Records:
        return self._records if self._records is not None else export.load(self.table)

    @cached_property
    def claims(self) -> list[Claim]:
        return claims(self.records, self.table.cells)

    @cached_property
    def theory(self) -> DataFrame:
        """What `python -m reproduce theory` left in the results folder."""
        path = results_folder() / "theory.csv"
        try:
            return pd.read_csv(path)
        except (OSError, ValueError) as error:
            raise Missing("no theory.csv; run `python -m reproduce theory`") from error

    @property
    def theory_if_there(self) -> DataFrame | None:
        try:
            return self.theory
        except Missing:
            return None

    def need(self, sweep: str = "") -> DataFrame:
        """The runs of one sweep, or of none without a name. Raises Missing where there are none."""
        runs = self.records.runs_of(sweep)
        if runs.empty and not sweep:
            raise Missing(f"table {self.table.name} has no finished run outside its sweeps")
        if runs.empty:
            known = any(cell.sweep == sweep for cell in self.table.cells.values())
            reason = "has no finished run of its" if known else "has no"
            raise Missing(f"table {self.table.name} {reason} sweep {sweep}")
        return runs

    def missing(self, sweep: str = "") -> list[str]:
        """The cells that the table asks for and that have no finished run."""
        done = set(self.records.runs["cell"])
        return [
            cell.name
            for cell in self.table.cells.values()
            if cell.sweep == sweep and cell.name not in done
        ]

    def notes(self, shown: Callable[[str, str], bool] = lambda network, method: True) -> list[str]:
        """What a reader of a figure of the grid must know: cells without a run, cells with fewer
        runs than the table asks for, or with but one, and networks whose rows differ in more than
        their methods.

        Args:
            shown: whether the figure is about a (network, method).
        """

        def wanted(cell: str) -> bool:
            return shown(*cell.split("/"))

        counts = self.records.runs_of().groupby("cell", sort=False).size()
        counts = counts[[cell for cell in counts.index if wanted(cell)]]
        asked = {cell.name: cell.seeds for cell in self.table.cells.values()}
        single = [name for name in counts.index if counts[name] == 1]
        short = [
            f"{name} ({count} of {asked[name]})"
            for name, count in counts.items()
            if 1 < count < asked.get(name, 0)
        ]
        lines = []
        if missing := list(filter(wanted, self.missing())):
            lines.append(f"missing: {several(missing)}")
        if single and len(single) == len(counts):
            lines.append("1 seed a cell: nothing here tells how far apart seeds lie")
        elif single:
            lines.append(f"1 seed: {several(single)}")
        if short:
            lines.append(f"seeds missing: {several(short)}")
        for network, runs in self.records.runs_of().groupby("network", sort=False):
            told = varied(runs[runs["cell"].map(wanted)])
            if told:
                lines.append(f"rows of {network} cannot be compared, they differ in {told}")
        return lines

    def diverged(self, sweep: str = "") -> list[str]:
        """A line that names the cells with runs that diverged, and how many of how many did."""
        found = []
        for cell, group in self.records.runs_of(sweep).groupby("cell", sort=False):
            count = int((group["status"] == "diverged").sum())
            if count:
                found.append(f"{cell} ({count} of {len(group)})" if len(group) > 1 else str(cell))
        return [f"diverged: {several(found)}"] if found else []


def several(names: Sequence[str]) -> str:
    """`a, b, c`, or the first few of them and how many more there are."""
    rest = len(names) - NAMED
    return f"{', '.join(names[:NAMED])} and {rest} more" if rest > 1 else ", ".join(names)


def networks(runs: DataFrame) -> list[str]:
    """The networks of some runs, in the order of the table."""
    return list(dict.fromkeys(runs["network"]))


def metric_name(metric: str, unit: bool = False) -> str:
    """A metric as a title or an axis writes it."""
    name = {"bleu": "BLEU"}.get(metric, metric)
    return f"{name} (%)" if unit and metric == "accuracy" else name
