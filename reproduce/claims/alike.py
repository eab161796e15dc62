"""Which runs may be compared: those that differ in their method, and what belongs to it, alone."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pandas as pd
from pandas import DataFrame

from reproduce import summary

OWN = frozenset(
    {
        "annealing_steps", "decay", "t1_exponent", "t1_floor", "sync_steps", "schedule", "segment",
        "lockfree_workers", "engine", "workers", "threads", "trace", "measure_discrepancy",
        "eval_every", "target", "seed",
    }
)  # fmt: skip
"""Settings that rows may differ in: what a method alone reads (K, D, W, its schedule, recompute,
its own workers), where it runs, how it is watched and read, and the seed, which gaps are paired by.
All others (optimizer, learning rate, steps, batch, network, P and N) must agree."""
PLACE = ("workers", "threads", "engine")
"""Settings that the clock depends on and the result does not"""


def varied(runs: DataFrame, but: Collection[str] = (), alike: Collection[str] = ()) -> str:
    """`lr = 0.01 and 0.02, steps = 50 and 600`: in what the settings of these runs differ though
    they may not; empty where in nothing.

    Args:
        but: further settings that may differ.
        alike: settings of `OWN` that must agree all the same.
    """
    free = OWN.difference(alike).union(but)
    keys = [key for key in runs.columns if key.startswith("set_")]
    return _told(runs, [key for key in keys if key.removeprefix("set_") not in free])


def placed(runs: DataFrame) -> str:
    """The same of what the clock depends on: the workers, their threads, the engine, the machine.

    Times and measured utilizations may be compared where it is empty.
    """
    machines = [summary.machine(run) for run in runs.to_dict("records")]
    keys = [f"set_{key}" for key in PLACE if f"set_{key}" in runs]
    return _told(runs.assign(machine=machines), [*keys, "machine"])


def _told(runs: DataFrame, keys: Collection[str]) -> str:
    found = {key.removeprefix("set_"): list(dict.fromkeys(map(_plain, runs[key]))) for key in keys}
    return ", ".join(
        f"{key} = {' and '.join(values)}" for key, values in found.items() if len(values) > 1
    )


def _plain(value: Any) -> str:
    if value is None or value == "" or (isinstance(value, float) and pd.isna(value)):
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
