"""Time to target: the steps that a method takes to a quality, and how long those steps take."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from pandas import DataFrame, Series

from reproduce.claims.alike import placed, varied
from reproduce.claims.frames import numbers
from reproduce.records import Records
from reproduce.schedule import gpipe_utilization

COLUMNS = ["network", "method", "target", "n", "reached", "best", "steps", "utilization_stages",
           "utilization_workers", "time_stages", "time_workers", "seconds", "speedup_stages",
           "speedup_low", "speedup_high", "speedup_workers", "speedup_seconds", "pairs", "differ",
           "placed", "cells", "runs"]  # fmt: skip


def time_to_target(records: Records, baseline: str = "gpipe") -> DataFrame:
    """When each method's metric first reaches the target that its network sets.

    Columns: network, method, target (percent), n (runs), reached (of them), best (highest metric
    seen, mean over the runs), steps (first evaluation at the target or above, mean over the runs;
    NaN where one never reaches it), and for those steps

    - utilization_stages, time_stages: by the model with one device a stage, N/(N+P-1) in
      synchronous steps and 1 in others, so amortised over a warm-up: r/(1 + f(r-1)) times GPipe's
      with r = (N+P-1)/N and f the share of synchronous steps on the way to the target; time in
      steps of a pipeline that is always full;
    - utilization_workers, time_workers: the same with the utilization measured on the workers used;
    - seconds: what the training loop took that long on this machine.

    speedup_...: the baseline's time over this one's; speedup_stages is of the `pairs`, the seeds
    that both have and reach it at. speedup_low and speedup_high bound it over them: the target was
    reached between two evaluations, so the earliest and the latest step on each side are set
    against each other. differ: settings in which the two rows differ (the target counts), placed:
    what the clock depends on in which they do (`alike`); speedup_workers and speedup_seconds are
    there only where both are empty. Networks without a target give no rows; a run that diverged
    never reaches it.
    """
    rows = [
        _row(records, network, method, group)
        for (network, method), group in records.runs_of().groupby(["network", "method"], sort=False)
        if numbers(group, "set_target").notna().all()
    ]
    by_name = {(row["network"], row["method"]): row for row in rows}
    for row in rows:
        row |= _speedups(by_name.get((row["network"], baseline)), row)
        row |= {key: row.get(key, "") for key in ("differ", "placed")}
    return DataFrame(rows, columns=COLUMNS)


def _row(records: Records, network: str, method: str, group: DataFrame) -> dict[str, Any]:
    runs = [run for _, run in group.iterrows()]
    spans = [first_reached(records, run) for run in runs]
    whole = len(spans) if all(span is not None for span in spans) else 0
    latest = [span[1] for span in spans if span is not None]
    steps = sum(latest) / whole if whole else math.nan
    stages = sum(map(stage_time, runs, latest)) / whole if whole else math.nan
    measured = group["utilization_measured"].mean()
    paces = numbers(group, "loop_s").fillna(numbers(group, "wall_s")) / group["steps"]
    return {
        "network": network,
        "method": method,
        "target": group["set_target"].iloc[0],
        "n": len(group),
        "reached": sum(span is not None for span in spans),
        "best": group["best"].mean() if group["best"].notna().all() else math.nan,
        "steps": steps,
        "utilization_stages": steps / stages if whole else math.nan,
        "utilization_workers": measured,
        "time_stages": stages,
        "time_workers": steps / measured,
        "seconds": steps * paces.mean(),
        "cells": tuple(dict.fromkeys(group["cell"])),
        "runs": tuple(group["mlflow_run_id"]),
        "_group": group,
        "_bounds": {
            run["seed"]: tuple(stage_time(run, max(1, step)) for step in span)
            for run, span in zip(runs, spans, strict=True)
            if span is not None
        },
    }


def first_reached(records: Records, run: Series) -> tuple[int, int] | None:
    """(last evaluation below the target, first one at it or above), in steps; None: never."""
    if run["status"] == "diverged":
        return None
    curve = records.of(records.curves, run)
    before = 0
    for _, point in curve[curve["series"] == run["metric"]].sort_values("step").iterrows():
        if point["value"] >= run["set_target"]:
            return before, int(point["step"])
        before = int(point["step"])
    return None


def stage_time(run: Series, steps: float) -> float:
    """The time of the first `steps` steps with one device a stage, in steps of a full pipeline.

    With u = N/(N+P-1) and W synchronous steps, min(W, steps)/u + max(steps - W, 0). W is read off
    the run's utilization U = 1/(f/u + 1 - f), f = W / (its steps): whatever its method, it is
    what the harness modelled.
    """
    u = gpipe_utilization(int(run["set_stages"]), int(run["set_microbatches"]))
    if u == 1.0:
        return steps
    f = (1.0 / run["utilization_model_stages"] - 1.0) / (1.0 / u - 1.0)
    synchronous = min(round(f * run["steps"]), steps)
    return float(synchronous / u + steps - synchronous)


def _speedups(base: dict[str, Any] | None, row: dict[str, Any]) -> dict[str, Any]:
    if base is None:
        return {}
    both = pd.concat([base["_group"], row["_group"]])
    found: dict[str, Any] = {"differ": varied(both, alike=("target",)), "placed": placed(both)}
    if not found["differ"] and not found["placed"]:
        found |= {
            "speedup_workers": base["time_workers"] / row["time_workers"],
            "speedup_seconds": base["seconds"] / row["seconds"],
        }
    seeds = base["_bounds"].keys() & row["_bounds"].keys()
    pairs = [(base["_bounds"][seed], row["_bounds"][seed]) for seed in seeds]
    found["pairs"] = len(pairs)
    if pairs and not math.isnan(base["steps"] + row["steps"]) and not found["differ"]:
        found["speedup_stages"] = sum(b for (_, b), _ in pairs) / sum(r for _, (_, r) in pairs)
        found["speedup_low"] = min(early / late for (early, _), (_, late) in pairs)
        found["speedup_high"] = max(late / early for (_, late), (early, _) in pairs)
    return found


def utilization(records: Records, baseline: str = "gpipe") -> DataFrame:
    """Busy share of the devices over whole runs, means over the runs that were not cut short.

    Columns: network, method, stages (P), microbatches (N), workers (K_w), model_stages (one device
    a stage, amortised over a warm-up), model_workers, measured (on the workers), over_stages and
    over_measured (how many times the baseline's), differ (settings in which the two rows differ: no
    over_stages then), placed (what the clock depends on in which they do: no over_measured then),
    cells, runs.
    """
    rows: list[dict[str, Any]] = []
    groups: dict[tuple[str, str], DataFrame] = {}
    finished = records.runs_of(status="finished")
    for (network, method), group in finished.groupby(["network", "method"], sort=False):
        groups[network, method] = group
        rows.append(
            {
                "network": network,
                "method": method,
                "stages": int(group["set_stages"].iloc[0]),
                "microbatches": int(group["set_microbatches"].iloc[0]),
                "workers": int(group["set_workers"].iloc[0]),
                "model_stages": group["utilization_model_stages"].mean(),
                "model_workers": group["utilization_model_workers"].mean(),
                "measured": group["utilization_measured"].mean(),
                "cells": tuple(dict.fromkeys(group["cell"])),
                "runs": tuple(group["mlflow_run_id"]),
            }
        )
    base = {row["network"]: row for row in rows if row["method"] == baseline}
    for row in rows:
        row |= {"over_stages": math.nan, "over_measured": math.nan, "differ": "", "placed": ""}
        other = base.get(row["network"])
        if other is None:
            continue
        both = pd.concat([groups[row["network"], m] for m in (baseline, row["method"])])
        row |= {"differ": varied(both), "placed": placed(both)}
        if not row["differ"]:
            row["over_stages"] = row["model_stages"] / other["model_stages"]
            if not row["placed"]:
                row["over_measured"] = row["measured"] / other["measured"]
    columns = ["network", "method", "stages", "microbatches", "workers", "model_stages",
               "model_workers", "measured", "over_stages", "over_measured", "differ", "placed",
               "cells", "runs"]  # fmt: skip
    return DataFrame(rows, columns=columns)
