"""The evidence of two sweeps over P: who diverges at which depth, and how well T2 approximates."""

from __future__ import annotations

import math
import re
from typing import Any

from pandas import DataFrame

from reproduce.claims.alike import varied
from reproduce.claims.frames import diverged, flat, numbers
from reproduce.claims.rules import learnt
from reproduce.records import Records


def regime(variant: str) -> str:
    """The settings that a variant varies beside the depth: `lr=0.005` of
    `depth:stages=50,lr=0.005`."""
    settings = re.split(r",(?=\w+=)", variant.partition(":")[2])
    return ",".join(s for s in settings if s and not s.startswith("stages="))


def depth(records: Records, sweep: str = "depth") -> DataFrame:
    """Who diverges where, one row a method, regime and depth.

    Columns: network, regime, stages (P), method, n, diverged (runs), diverged_at (mean step), final
    (mean of the runs that did not), steps (fewest of those that did not), learnt (how many of those
    had learnt the task at their end), differ (settings in which the regime's runs differ beside P,
    see `alike.varied`), cells, runs.
    """
    runs = records.runs_of(sweep)
    runs = runs.assign(regime=runs["variant"].map(regime))
    differ = {
        key: varied(group, but=("stages",)) for key, group in runs.groupby(["network", "regime"])
    }
    rows = []
    keys = ["network", "regime", "set_stages", "method"]
    for (network, name, p, method), group in runs.groupby(keys, sort=False):
        ended = group[group["status"] != "diverged"]
        rows.append(
            {
                "network": network,
                "regime": name,
                "stages": int(p),
                "method": method,
                "n": len(group),
                "diverged": diverged(group),
                "diverged_at": numbers(group, "diverged_at").mean(),
                "final": numbers(group, "final").mean(),
                "steps": numbers(ended, "steps").min(),
                "learnt": sum(map(learnt, ended["metric"], numbers(ended, "final"))),
                "differ": differ[network, name],
                "cells": tuple(dict.fromkeys(group["cell"])),
                "runs": tuple(group["mlflow_run_id"]),
            }
        )
    columns = ["network", "regime", "stages", "method", "n", "diverged", "diverged_at", "final",
               "steps", "learnt", "differ", "cells", "runs"]  # fmt: skip
    return DataFrame(rows, columns=columns)


def regimes(found: DataFrame) -> DataFrame:
    """What `depth` says of each regime.

    Columns: network, regime, shallowest, deepest (smallest and largest P with both methods; 0 where
    there is none), t1_shallow, t1_deep, t2_deep (share of the runs there that diverged, T1 or
    T1+T2; NaN: none), needed_from (smallest P where every T1 run diverges and no T1+T2 run does;
    NaN: none), n (fewest runs of a method at a depth), ended (runs that did not diverge), steps
    (the fewest of theirs), learnt (how many of them had learnt the task at their end), differ,
    cells, runs.
    """
    rows = []
    for (network, name), group in found.groupby(["network", "regime"], sort=False):
        share = (
            group.assign(share=group["diverged"] / group["n"])
            .pivot(index="stages", columns="method", values="share")
            .reindex(columns=["t1", "t1+t2"])
            .dropna()
            .sort_index()
        )
        needed = share[(share["t1"] == 1) & (share["t1+t2"] == 0)].index
        rows.append(
            {
                "network": network,
                "regime": name,
                **_ends(share),
                "needed_from": float(needed[0]) if len(needed) else math.nan,
                "n": int(group["n"].min()),
                "ended": int((group["n"] - group["diverged"]).sum()),
                "steps": group["steps"].min(),
                "learnt": int(group["learnt"].sum()),
                "differ": group["differ"].iloc[0],
                "cells": flat(group["cells"]),
                "runs": flat(group["runs"]),
            }
        )
    columns = ["network", "regime", "shallowest", "deepest", "t1_shallow", "t1_deep", "t2_deep",
               "needed_from", "n", "ended", "steps", "learnt", "differ", "cells",
               "runs"]  # fmt: skip
    return DataFrame(rows, columns=columns)


def _ends(share: DataFrame) -> dict[str, Any]:
    """What share of the runs diverged at both ends of a regime's depths."""
    keys = ("shallowest", "deepest", "t1_shallow", "t1_deep", "t2_deep")
    if share.empty:
        return dict(zip(keys, (0, 0, math.nan, math.nan, math.nan), strict=True))
    first, last = share.iloc[0], share.iloc[-1]
    ends = int(share.index[0]), int(share.index[-1]), first["t1"], last["t1"], last["t1+t2"]
    return dict(zip(keys, ends, strict=True))


def approximation(records: Records, sweep: str = "approximation") -> DataFrame:
    """How good T2's approximation is, one row a stage, depth and method, means over runs.

    Columns: network, regime, method, stages (P), stage (i), tau_fwd, tau_bkwd (updates), ratio =
    |u_bkwd - w_fwd| / |w - w_fwd|, below 1 where T2's weights are nearer to the forward pass's
    than the live ones are, distance = |w - w_fwd| / |w_fwd| (how far the live weights had moved),
    n (runs).
    """
    columns = ["network", "regime", "method", "stages", "stage", "tau_fwd", "tau_bkwd", "ratio",
               "distance", "n"]  # fmt: skip
    runs = records.runs_of(sweep)
    told = runs.assign(regime=runs["variant"].map(regime), stages=runs["set_stages"])[
        ["mlflow_run_id", "network", "regime", "method", "stages"]
    ]
    named = {"t2_ratio": "ratio", "t2_distance": "distance"}
    found = told.merge(records.stages.rename(columns=named), on="mlflow_run_id")
    found = found[found["ratio"].notna()]
    if found.empty:
        return DataFrame(columns=columns)
    means = {key: (key, "mean") for key in ("tau_fwd", "tau_bkwd", "ratio", "distance")}
    keys = ["network", "regime", "method", "stages", "stage"]
    return found.groupby(keys, sort=True).agg(**means, n=("ratio", "size")).reset_index()[columns]
