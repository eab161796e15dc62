"""The evidence of two sweeps over P: of networks that grow with it, and of one cut ever finer."""

from __future__ import annotations

import math

from pandas import DataFrame

from reproduce.claims.frames import flat, numbers
from reproduce.records import Records
from reproduce.statistics import power_law


def activations(records: Records, sweep: str = "activations") -> DataFrame:
    """Measured peak of the activations, one row a depth, with and without recompute.

    Columns: network, stages (P), units (weighted layers), segment (S; 0: activations are kept),
    recompute (bool), bytes (mean over runs), n, fits (bool: one layer a stage, and S within a
    factor of 2 of sqrt(P), so that an exponent may be fitted), cells, runs.
    """
    runs = records.runs_of(sweep)
    counted = runs.assign(segment=numbers(runs, "set_segment").fillna(0))
    counted = counted[numbers(runs, "memory_activations_peak") > 0]
    rows = []
    for (network, p, s), group in counted.groupby(["network", "set_stages", "segment"]):
        sized = s == 0 or 0.5 <= s / math.sqrt(p) <= 2
        rows.append(
            {
                "network": network,
                "stages": int(p),
                "units": int(group["units"].iloc[0]),
                "segment": int(s),
                "recompute": bool(s),
                "bytes": numbers(group, "memory_activations_peak").mean(),
                "n": len(group),
                "fits": bool(sized and (group["units"] == p).all()),
                "cells": tuple(dict.fromkeys(group["cell"])),
                "runs": tuple(group["mlflow_run_id"]),
            }
        )
    columns = ["network", "stages", "units", "segment", "recompute", "bytes", "n", "fits", "cells",
               "runs"]  # fmt: skip
    return DataFrame(rows, columns=columns).sort_values(["network", "recompute", "stages"])


def exponents(found: DataFrame) -> DataFrame:
    """bytes = scale * P^exponent, fitted to what of `activations` fits.

    Columns: network, recompute, n (depths), exponent, low, high (Student's interval), scale,
    cells, runs; nothing of a series with fewer than three depths.
    """
    rows = []
    fit = found[found["fits"].astype(bool)]
    for (network, recompute), group in fit.groupby(["network", "recompute"]):
        if group["stages"].nunique() < 3:
            continue
        law = power_law(group["stages"].tolist(), group["bytes"].tolist())
        rows.append(
            {
                "network": network,
                "recompute": recompute,
                **{key: getattr(law, key) for key in ("n", "exponent", "low", "high", "scale")},
                "cells": flat(group["cells"]),
                "runs": flat(group["runs"]),
            }
        )
    columns = ["network", "recompute", "n", "exponent", "low", "high", "scale", "cells", "runs"]
    return DataFrame(rows, columns=columns)


def throughput(records: Records, sweep: str = "cuts") -> DataFrame:
    """One network cut into ever more stages: activations and throughput against P.

    Columns: network, method, stages (P), workers (K_w), bytes (peak of the activations),
    samples_per_s (samples trained on over the time of the training loop; over the whole run's
    where records lack that), n, cells, runs.
    """
    runs = records.runs_of(sweep)
    seconds = numbers(runs, "loop_s").fillna(numbers(runs, "wall_s"))
    paced = runs.assign(pace=runs["steps"] * numbers(runs, "set_batch_size") / seconds)
    rows = []
    keys = ["network", "method", "set_stages", "set_workers"]
    for (network, method, p, workers), group in paced.groupby(keys):
        rows.append(
            {
                "network": network,
                "method": method,
                "stages": int(p),
                "workers": int(workers),
                "bytes": numbers(group, "memory_activations_peak").mean(),
                "samples_per_s": group["pace"].mean(),
                "n": len(group),
                "cells": tuple(dict.fromkeys(group["cell"])),
                "runs": tuple(group["mlflow_run_id"]),
            }
        )
    columns = ["network", "method", "stages", "workers", "bytes", "samples_per_s", "n", "cells",
               "runs"]  # fmt: skip
    return DataFrame(rows, columns=columns)
