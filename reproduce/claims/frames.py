"""Small helpers on the frames of the records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
from pandas import DataFrame

from reproduce.records import Records


def numbers(frame: DataFrame, key: str) -> Any:
    """A column as numbers; all NaN where older records lack it."""
    if key not in frame:
        return pd.Series(math.nan, index=frame.index)
    return pd.to_numeric(frame[key], errors="coerce")


def diverged(group: DataFrame) -> int:
    """How many of these runs diverged."""
    return int((group["status"] == "diverged").sum())


def flat(tuples: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """All that is in a column of tuples, once each, in order."""
    return tuple(dict.fromkeys(text for some in tuples for text in some))


def place(cell: str) -> tuple[str, str, str]:
    """(network, sweep, method) of a cell's name; no sweep: the row is one of the network's own."""
    network, _, method = cell.rpartition("/")
    name, _, variant = network.partition("@")
    return name, variant.partition(":")[0], method


def measured(runs: DataFrame) -> DataFrame:
    """The runs whose memory and pace count: those that reached their end and, with it, a full
    pipeline. Micro-batch 2P is the first to find 2P - 1 others between stage 1's passes, so runs
    of N * steps < 2P micro-batches held less than the method does, and so did diverged ones, which
    ended early."""
    microbatches = numbers(runs, "set_microbatches") * numbers(runs, "steps")
    full = microbatches >= 2 * numbers(runs, "set_stages")
    return runs[(runs["status"] == "finished") & full]


def cells(records: Records) -> Iterator[tuple[tuple[str, str, str], DataFrame]]:
    """((network, method, cell), its runs) of every cell outside sweeps, in the table's order."""
    yield from records.runs_of().groupby(["network", "method", "cell"], sort=False)
