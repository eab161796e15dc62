"""The evidence on the rows of a network: which there are, their quality, measured delays.

Pure functions from records to tidy frames; the claims rule on them and the figures draw them. Those
on gaps, memory, time and sweeps are in files of their own, and can be had from here as well. A
column `runs` holds a tuple of MLflow's ids, `cells` one of cell names. Evidence that is not there
gives a frame without rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from pandas import DataFrame

from reproduce.claims.activations import activations, exponents, throughput
from reproduce.claims.depths import approximation, depth, regimes
from reproduce.claims.frames import cells, diverged, numbers, place
from reproduce.claims.gaps import gaps
from reproduce.claims.memory import memory
from reproduce.claims.timing import time_to_target, utilization
from reproduce.records import Records
from reproduce.statistics import mean_interval

__all__ = [
    "activations",
    "approximation",
    "depth",
    "exponents",
    "gaps",
    "measured_delays",
    "memory",
    "networks",
    "pipemare",
    "quality",
    "regimes",
    "throughput",
    "time_to_target",
    "utilization",
]


def networks(records: Records, cells: Collection[str] = ()) -> list[str]:
    """The networks that have rows of their own, outside sweeps, in the table's order.

    Args:
        cells: the names of the table's cells, finished or not; without any, what the records have.
    """
    asked = [network for network, sweep, _ in map(place, cells) if not sweep]
    return list(dict.fromkeys([*asked, *records.runs_of()["network"]]))


def pipemare(records: Records, network: str, cells: Collection[str] = ()) -> str:
    """The row that stands for PipeMare: t1+t2+t3 where the network has it, else t1+t2.

    So fixed before any result was looked at: by the table where its cells are given, so that it is
    the same before that row is finished.
    """
    methods = set(records.runs_of(network=network)["method"])
    methods |= {
        method for name, sweep, method in map(place, cells) if (name, sweep) == (network, "")
    }
    return "t1+t2+t3" if "t1+t2+t3" in methods else "t1+t2"


def quality(records: Records) -> DataFrame:
    """The final metric (percent) of each cell over its seeds.

    Columns: network, method, cell, metric, n (runs), diverged (runs), mean, low, high (bootstrap;
    NaN where a run diverged, since the rest would flatter it), resolution (percent), runs.
    """
    rows = []
    for (network, method, cell), group in cells(records):
        values = group["final"].dropna().tolist()
        whole = mean_interval(values) if values and len(values) == len(group) else None
        rows.append(
            {
                "network": network,
                "method": method,
                "cell": cell,
                "metric": group["metric"].iloc[0],
                "n": len(group),
                "diverged": diverged(group),
                "mean": whole.mean if whole else math.nan,
                "low": whole.low if whole else math.nan,
                "high": whole.high if whole else math.nan,
                "resolution": numbers(group, "resolution").max(),
                "runs": tuple(group["mlflow_run_id"]),
            }
        )
    return DataFrame(rows, columns=_QUALITY)


_QUALITY = ["network", "method", "cell", "metric", "n", "diverged", "mean", "low", "high",
            "resolution", "runs"]  # fmt: skip


def measured_delays(records: Records) -> DataFrame:
    """What lock-free workers counted, one row a cell.

    Columns: network, method, cell, n (runs), mean, largest (updates), samples (delays counted).
    """
    rows = []
    for (network, method, cell), group in cells(records):
        of_cell = records.delays[records.delays["mlflow_run_id"].isin(group["mlflow_run_id"])]
        count = of_cell["count"].sum()
        if count:
            rows.append(
                {
                    "network": network,
                    "method": method,
                    "cell": cell,
                    "n": of_cell["mlflow_run_id"].nunique(),
                    "mean": float((of_cell["delay"] * of_cell["count"]).sum() / count),
                    "largest": float(of_cell["delay"].max()),
                    "samples": int(count),
                }
            )
    columns = ["network", "method", "cell", "n", "mean", "largest", "samples"]
    return DataFrame(rows, columns=columns)
