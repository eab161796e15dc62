"""The evidence of two sweeps over P: who diverges at which depth, and how well T2 approximates."""

from __future__ import annotations

import math
import re

from pandas import DataFrame

from reproduce.claims.frames import diverged, flat, numbers
from reproduce.records import Records


def regime(variant: str) -> str:
    """The settings that a variant varies beside the depth: `lr=0.005` of
    `depth:stages=50,lr=0.005`."""
    settings = re.split(r",(?=\w+=)", variant.partition(":")[2])
    return ",".join(s for s in settings if s and not s.startswith("stages="))


def depth(records: Records, sweep: str = "depth") -> DataFrame:
    """Who diverges where, one row a method, regime and depth.

    Columns: network, regime, stages (P), method, n, diverged (runs), diverged_at (mean step),
    final (mean of the runs that did not), cells, runs.
    """
    runs = records.runs_of(sweep)
    keys = ["network", "regime", "set_stages", "method"]
    rows = []
    for (network, name, p, method), group in runs.assign(
        regime=runs["variant"].map(regime)
    ).groupby(keys, sort=False):
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
                "cells": tuple(dict.fromkeys(group["cell"])),
                "runs": tuple(group["mlflow_run_id"]),
            }
        )
    columns = ["network", "regime", "stages", "method", "n", "diverged", "diverged_at", "final",
               "cells", "runs"]  # fmt: skip
    return DataFrame(rows, columns=columns)


def regimes(found: DataFrame) -> DataFrame:
    """What `depth` says of each regime.

    Columns: network, regime, shallowest, deepest (smallest and largest P with both methods),
    t1_shallow, t1_deep, t2_deep (share of the runs there that diverged, T1 or T1+T2), needed_from
    (smallest P where every T1 run diverges and no T1+T2 run does; NaN: none), n (fewest runs of a
    method at a depth), cells, runs.
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
        if share.empty:
            continue
        needed = share[(share["t1"] == 1) & (share["t1+t2"] == 0)].index
        rows.append(
            {
                "network": network,
                "regime": name,
                "shallowest": int(share.index[0]),
                "deepest": int(share.index[-1]),
                "t1_shallow": share["t1"].iloc[0],
                "t1_deep": share["t1"].iloc[-1],
                "t2_deep": share["t1+t2"].iloc[-1],
                "needed_from": float(needed[0]) if len(needed) else math.nan,
                "n": int(group["n"].min()),
                "cells": flat(group["cells"]),
                "runs": flat(group["runs"]),
            }
        )
    columns = ["network", "regime", "shallowest", "deepest", "t1_shallow", "t1_deep", "t2_deep",
               "needed_from", "n", "cells", "runs"]  # fmt: skip
    return DataFrame(rows, columns=columns)


def approximation(records: Records, sweep: str = "approximation") -> DataFrame:
    """How good T2's approximation is, one row a stage and depth, means over runs.

    Columns: network, regime, stages (P), stage (i), tau_fwd, tau_bkwd (updates), ratio =
    ||u_bkwd - w_fwd|| / ||w - w_fwd||, below 1 where T2's weights are nearer to the forward pass's
    than the live ones are, distance = ||u_bkwd - w_fwd||, n (runs).
    """
    columns = ["network", "regime", "stages", "stage", "tau_fwd", "tau_bkwd", "ratio", "distance",
               "n"]  # fmt: skip
    runs = records.runs_of(sweep)
    told = runs.assign(regime=runs["variant"].map(regime), stages=runs["set_stages"])[
        ["mlflow_run_id", "network", "regime", "stages"]
    ]
    named = {"t2_ratio": "ratio", "t2_distance": "distance"}
    found = told.merge(records.stages.rename(columns=named), on="mlflow_run_id")
    found = found[found["ratio"].notna()]
    if found.empty:
        return DataFrame(columns=columns)
    means = {key: (key, "mean") for key in ("tau_fwd", "tau_bkwd", "ratio", "distance")}
    keys = ["network", "regime", "stages", "stage"]
    return found.groupby(keys, sort=True).agg(**means, n=("ratio", "size")).reset_index()[columns]
