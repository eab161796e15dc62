"""What a method holds beside the activations: weights, optimizer state, delta, old versions."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from pandas import DataFrame, Series

from reproduce.claims.frames import cells, numbers
from reproduce.records import Records

HELD = ("weights", "optimizer", "discrepancy", "stash")
"""What the paper's weight and optimizer memory is made of; discrepancy is T2's delta"""


def memory(records: Records) -> DataFrame:
    """Bytes of weights and all that goes with them, the largest of a cell's runs.

    Columns: network, method, cell, optimizer (with its momentum), weights, optimizer_bytes,
    discrepancy (delta of T2), stash, total, pipedream_over (how many times this is PipeDream's
    total), over_gpipe (how many times GPipe's total is this), runs. Gradients are left out: every
    method holds the same.
    """
    rows: list[dict[str, Any]] = []
    for (network, method, cell), group in cells(records):
        held = {key: numbers(group, f"memory_{key}").max() for key in HELD}
        rows.append(
            {
                "network": network,
                "method": method,
                "cell": cell,
                "optimizer": _optimizer(group.iloc[0]),
                **{"optimizer_bytes" if key == "optimizer" else key: b for key, b in held.items()},
                "total": sum(held.values()),
                "runs": tuple(group["mlflow_run_id"]),
            }
        )
    found = DataFrame(rows, columns=_MEMORY)
    totals = found.set_index(["network", "method"])["total"]
    for key, method in (("pipedream_over", "pipedream"), ("over_gpipe", "gpipe")):
        other = [totals.get((network, method), math.nan) for network in found["network"]]
        found[key] = pd.Series(other, index=found.index, dtype=float)
    found["pipedream_over"] /= found["total"]
    found["over_gpipe"] = found["total"] / found["over_gpipe"]
    return found


_MEMORY = ["network", "method", "cell", "optimizer", "weights", "optimizer_bytes", "discrepancy",
           "stash", "total", "runs"]  # fmt: skip


def _optimizer(run: Series) -> str:
    name, momentum = str(run.get("set_optimizer", "")), run.get("set_momentum")
    plain = momentum is None or pd.isna(momentum) or not float(momentum)
    return name if plain else f"{name} with momentum {float(momentum):g}"
