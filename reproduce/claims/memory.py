"""What a method holds beside the activations: weights, optimizer state, delta, old versions."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from pandas import DataFrame, Series

from reproduce.claims.alike import varied
from reproduce.claims.frames import cells, measured, numbers
from reproduce.records import Records

HELD = ("weights", "optimizer", "discrepancy", "stash")
"""What the paper's weight and optimizer memory is made of; discrepancy is T2's delta"""


def memory(records: Records) -> DataFrame:
    """Bytes of weights and all that goes with them, the largest of a cell's runs that reached their
    end (`frames.measured`: a stash is a measured peak); a cell without one has no row.

    Columns: network, method, cell, optimizer (with its momentum), weights, optimizer_bytes,
    discrepancy (delta of T2), stash, total, pipedream_over (how many times this is PipeDream's
    total), over_gpipe (how many times GPipe's total is this), pipedream_differ, gpipe_differ
    (settings in which the two rows differ, see `alike.varied`; no ratio then), runs. Gradients are
    left out: every method holds the same.
    """
    rows: list[dict[str, Any]] = []
    kept: dict[tuple[str, str], DataFrame] = {}
    for (network, method, cell), every in cells(records):
        group = measured(every)
        if group.empty:
            continue
        kept[network, method] = group
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
    totals = dict(zip(kept, found["total"], strict=True))
    for key, method in (("pipedream_over", "pipedream"), ("over_gpipe", "gpipe")):
        differ = [_differ(kept, row, method) for row in kept]
        other = [
            math.nan if told else totals.get((network, method), math.nan)
            for (network, _), told in zip(kept, differ, strict=True)
        ]
        found[f"{method}_differ"] = pd.Series(differ, index=found.index, dtype=object)
        found[key] = pd.Series(other, index=found.index, dtype=float)
    found["pipedream_over"] /= found["total"]
    found["over_gpipe"] = found["total"] / found["over_gpipe"]
    return found


def _differ(kept: dict[tuple[str, str], DataFrame], row: tuple[str, str], method: str) -> str:
    other = kept.get((row[0], method))
    return "" if other is None else varied(pd.concat([other, kept[row]]))


_MEMORY = ["network", "method", "cell", "optimizer", "weights", "optimizer_bytes", "discrepancy",
           "stash", "total", "runs"]  # fmt: skip


def _optimizer(run: Series) -> str:
    name, momentum = str(run.get("set_optimizer", "")), run.get("set_momentum")
    plain = momentum is None or pd.isna(momentum) or not float(momentum)
    return name if plain else f"{name} with momentum {float(momentum):g}"
