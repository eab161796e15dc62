"""The evidence on the rows of a network: quality, gaps, time to target, memory.

Pure functions from records to tidy frames; the claims rule on them and the figures draw them. Those
on sweeps and on time are in files of their own, and can be had from here as well. A column `runs`
holds a tuple of MLflow's ids, `cells` one of cell names. Evidence that is not there gives a frame
without rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from pandas import DataFrame
from scipy import stats

from reproduce.claims.activations import activations, exponents, throughput
from reproduce.claims.depths import approximation, depth, regimes
from reproduce.claims.frames import cells, diverged, numbers
from reproduce.claims.memory import memory
from reproduce.claims.timing import time_to_target, utilization
from reproduce.records import Records
from reproduce.statistics import CONFIDENCE, mean_interval

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

Z = float(stats.norm.ppf((1 + CONFIDENCE) / 2))


def networks(records: Records) -> list[str]:
    """The networks that have rows of their own, outside sweeps, in the table's order."""
    return list(dict.fromkeys(records.runs_of()["network"]))


def pipemare(records: Records, network: str) -> str:
    """The row that stands for PipeMare: t1+t2+t3 where the network has it, else t1+t2.

    So fixed before any result was looked at.
    """
    methods = set(records.runs_of(network=network)["method"])
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


def gaps(records: Records, baseline: str = "gpipe") -> DataFrame:
    """How far each method's final metric is below the baseline's (points), paired by seed.

    Pairs share a seed, hence their held-out samples, data order and initial weights.

    Columns: network, method, baseline, metric, n (pairs), runs_n, diverged, baseline_n,
    baseline_diverged (runs), mean, low, high (bootstrap over the pairs; positive: the method is
    worse; NaN where a run on either side diverged), spread (half-width of Student's interval over
    the pairs; NaN below 2), sampling (half-width of the binomial interval of the difference over
    all pairs' test samples together; 0 for metrics that are no share of samples), resolution,
    final, baseline_final (means), cells, runs.
    """
    rows = []
    for _, of_network in records.runs_of().groupby("network", sort=False):
        by_method = dict(list(of_network.groupby("method", sort=False)))
        base = by_method.pop(baseline, None)
        if base is not None:
            rows += [_gap(base, other) for other in by_method.values()]
    return DataFrame(rows, columns=_GAPS)


_GAPS = ["network", "method", "baseline", "metric", "n", "runs_n", "diverged", "baseline_n",
         "baseline_diverged", "mean", "low", "high", "spread", "sampling", "resolution", "final",
         "baseline_final", "cells", "runs"]  # fmt: skip


def _gap(base: DataFrame, other: DataFrame) -> dict[str, Any]:
    tested = other.assign(resolution=numbers(other, "resolution"))
    pairs = base[["seed", "final"]].merge(
        tested[["seed", "final", "resolution"]], on="seed", suffixes=("_base", "")
    )
    finished = not (diverged(base) or diverged(other))
    differences = (pairs["final_base"] - pairs["final"]).dropna().tolist() if finished else []
    found = mean_interval(differences) if differences else None
    metric = other["metric"].iloc[0]
    return {
        "network": other["network"].iloc[0],
        "method": other["method"].iloc[0],
        "baseline": base["method"].iloc[0],
        "metric": metric,
        "n": len(pairs),
        "runs_n": len(other),
        "diverged": diverged(other),
        "baseline_n": len(base),
        "baseline_diverged": diverged(base),
        "mean": found.mean if found else math.nan,
        "low": found.low if found else math.nan,
        "high": found.high if found else math.nan,
        "spread": _student(differences),
        "sampling": _sampling(pairs) if found and metric == "accuracy" else 0.0,
        "resolution": tested["resolution"].max(),
        "final": other["final"].mean(),
        "baseline_final": base["final"].mean(),
        "cells": (base["cell"].iloc[0], other["cell"].iloc[0]),
        "runs": (*base["mlflow_run_id"], *other["mlflow_run_id"]),
    }


def _student(values: Sequence[float]) -> float:
    """Half-width of Student's interval of the mean; NaN below two values."""
    if len(values) < 2:
        return math.nan
    t = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    return t * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def _sampling(pairs: DataFrame) -> float:
    """Half-width of the interval of a difference of two accuracies, in points; NaN where the
    records do not say how many samples were tested.

    Both are taken for independent, which is too wide for methods that err on the same samples.
    Agresti and Coull's shares (two successes and two failures more) keep it above 0 at 100%.
    """
    samples = float((100 / pairs["resolution"]).sum(skipna=False))
    variance = 0.0
    for key in ("final_base", "final"):
        share = (pairs[key].mean() / 100 * samples + 2) / (samples + 4)
        variance += share * (1 - share) / (samples + 4)
    return 100 * Z * math.sqrt(variance)


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
