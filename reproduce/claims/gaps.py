"""The evidence of two rows of a network: how far apart their qualities are, and how surely."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame
from scipy import stats

from reproduce.claims import rules
from reproduce.claims.alike import varied
from reproduce.claims.frames import diverged, numbers
from reproduce.records import Records
from reproduce.statistics import CONFIDENCE, mean_interval

Z = float(stats.norm.ppf((1 + CONFIDENCE) / 2))


def gaps(records: Records, baseline: str = "gpipe") -> DataFrame:
    """How far each method's final metric is below the baseline's (points), paired by seed.

    Pairs share a seed, hence their held-out samples, data order and initial weights.

    Columns: network, method, baseline, metric, n (pairs), runs_n, diverged, baseline_n,
    baseline_diverged (runs), mean, low, high (bootstrap over the pairs; positive: the method is
    worse; NaN where a run on either side diverged), spread (half-width of Student's interval over
    the pairs; NaN below 2), sampling (half-width of the binomial interval of the difference over
    all pairs' test samples together; 0 for metrics that are no share of samples), resolution,
    final, baseline_final (means over the pairs; where there is no gap, over all runs that did not
    diverge), differ (settings in which the rows differ, see `alike.varied`), cells, runs.
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
         "baseline_final", "differ", "cells", "runs"]  # fmt: skip


def _gap(base: DataFrame, other: DataFrame) -> dict[str, Any]:
    tested = other.assign(resolution=numbers(other, "resolution"))
    pairs = base[["seed", "final"]].merge(
        tested[["seed", "final", "resolution"]], on="seed", suffixes=("_base", "")
    )
    finished = not (diverged(base) or diverged(other))
    differences = (pairs["final_base"] - pairs["final"]).dropna().tolist() if finished else []
    found = mean_interval(differences) if differences else None
    metric = other["metric"].iloc[0]
    ends = (pairs["final"], pairs["final_base"]) if found else (other["final"], base["final"])
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
        "sampling": _sampling(pairs) if found and metric in rules.SHARES else 0.0,
        "resolution": tested["resolution"].max(),
        "final": ends[0].mean(),
        "baseline_final": ends[1].mean(),
        "differ": varied(pd.concat([base, other])),
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
