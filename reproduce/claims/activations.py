"""The evidence of two sweeps over P: of networks that grow with it, and of one cut ever finer."""

from __future__ import annotations

import math
from typing import Any

from pandas import DataFrame

from reproduce.claims.alike import placed, varied
from reproduce.claims.frames import flat, measured, numbers
from reproduce.methods import METHODS
from reproduce.records import Records
from reproduce.statistics import power_law

SERIES = ["network", "method", "batch_size", "microbatches"]
"""What one series of depths shares"""


def flushes(method: str) -> bool:
    """Whether a method holds no more micro-batches than one mini-batch's: it is on the gpipe
    schedule (or nobody here knows what it is on), so that C5 is not about it."""
    return method not in METHODS or METHODS[method].schedule == "gpipe"


def activations(records: Records, sweep: str = "activations") -> DataFrame:
    """Measured peak of the activations, one row a depth, with and without recompute, of runs that
    reached their end and filled their pipeline.

    Columns: network, method, batch_size, microbatches (N), stages (P), units (weighted layers),
    segment (S; 0: activations are kept), recompute (bool), bytes (mean over runs), n, fits (bool:
    one layer a stage, S within a factor of 2 of sqrt(P), and the runs differ in no setting, so that
    an exponent may be fitted), cells, runs.
    """
    runs = measured(records.runs_of(sweep))
    counted = runs.assign(
        batch_size=numbers(runs, "set_batch_size"),
        microbatches=numbers(runs, "set_microbatches"),
        segment=numbers(runs, "set_segment").fillna(0),
    )
    counted = counted[numbers(runs, "memory_activations_peak") > 0]
    rows = []
    for (*series, p, s), group in counted.groupby([*SERIES, "set_stages", "segment"]):
        sized = s == 0 or 0.5 <= s / math.sqrt(p) <= 2
        rows.append(
            {
                **_series(series),
                "stages": int(p),
                "units": int(group["units"].iloc[0]),
                "segment": int(s),
                "recompute": bool(s),
                "bytes": numbers(group, "memory_activations_peak").mean(),
                "n": len(group),
                "fits": bool(sized and (group["units"] == p).all() and not varied(group)),
                "cells": tuple(dict.fromkeys(group["cell"])),
                "runs": tuple(group["mlflow_run_id"]),
            }
        )
    columns = [*SERIES, "stages", "units", "segment", "recompute", "bytes", "n", "fits", "cells",
               "runs"]  # fmt: skip
    return DataFrame(rows, columns=columns).sort_values([*SERIES, "recompute", "stages"])


def _series(key: list[Any]) -> dict[str, Any]:
    network, method, batch_size, microbatches = key
    numbered = {"batch_size": int(batch_size), "microbatches": int(microbatches)}
    return {"network": network, "method": method, **numbered}


def exponents(found: DataFrame) -> DataFrame:
    """bytes = scale * P^exponent, fitted to what of `activations` fits.

    Columns: network, method, batch_size, microbatches, recompute, flushes (bool: the method has
    them), n (depths), exponent, low, high (Student's interval), scale, cells, runs; nothing of a
    series with fewer than three depths.
    """
    rows = []
    fit = found[found["fits"].astype(bool)]
    for (*series, recompute), group in fit.groupby([*SERIES, "recompute"]):
        if group["stages"].nunique() < 3:
            continue
        law = power_law(group["stages"].tolist(), group["bytes"].tolist())
        rows.append(
            {
                **_series(series),
                "recompute": recompute,
                "flushes": flushes(series[1]),
                **{key: getattr(law, key) for key in ("exponent", "low", "high", "scale")},
                "n": int(group["stages"].nunique()),
                "cells": flat(group["cells"]),
                "runs": flat(group["runs"]),
            }
        )
    columns = [*SERIES, "recompute", "flushes", "n", "exponent", "low", "high", "scale", "cells",
               "runs"]  # fmt: skip
    return DataFrame(rows, columns=columns)


def throughput(records: Records, sweep: str = "cuts") -> DataFrame:
    """One network cut into ever more stages: activations and throughput against P, of runs that
    reached their end and filled their pipeline.

    Columns: network, method, batch_size, microbatches (N), stages (P), workers (K_w), bytes (peak
    of the activations), samples_per_s (samples trained on over the time of the training loop; over
    the whole run's where records lack that), placed (what the runs of the series differ in that the
    clock depends on, see `alike.placed`; no pace then), n, cells, runs.
    """
    runs = measured(records.runs_of(sweep))
    seconds = numbers(runs, "loop_s").fillna(numbers(runs, "wall_s"))
    batch_size = numbers(runs, "set_batch_size")
    paced = runs.assign(
        pace=runs["steps"] * batch_size / seconds,
        batch_size=batch_size,
        microbatches=numbers(runs, "set_microbatches"),
    )
    rows = []
    for (*series, workers), group in paced.groupby([*SERIES, "set_workers"]):
        told = placed(group)
        for p, of_p in group.groupby("set_stages"):
            rows.append(
                {
                    **_series(series),
                    "stages": int(p),
                    "workers": int(workers),
                    "bytes": numbers(of_p, "memory_activations_peak").mean(),
                    "samples_per_s": math.nan if told else of_p["pace"].mean(),
                    "placed": told,
                    "n": len(of_p),
                    "cells": tuple(dict.fromkeys(of_p["cell"])),
                    "runs": tuple(of_p["mlflow_run_id"]),
                }
            )
    columns = [*SERIES, "stages", "workers", "bytes", "samples_per_s", "placed", "n", "cells",
               "runs"]  # fmt: skip
    return DataFrame(rows, columns=columns)
