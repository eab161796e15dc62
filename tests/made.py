"""Made records: what a table of runs could have left, without training anything.

    records = made(
        [
            run("digits-resnet50", "gpipe", seed=0, final=95.0, curve={100: 90.0, 200: 95.0}),
            run("digits-resnet50", "t1", seed=0, diverged_at=42),
            run("digits-resnet152", "t1", variant="depth:stages=50,lr=0.005", final=60.0),
        ]
    )

Every column is there, as `reproduce.export` writes it, and a keyword names any of them. A test
imports this as `from ..made import made, run`.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from reproduce import records
from reproduce.records import Records

MACHINE = {"cpu": "made CPU", "cores": 2, "memory_gib": 16.0, "gpus": [], "system": "Linux x86_64"}
VERSIONS = {"python": "3.11.0", "torch": "2.14.1", "torchvision": "0.29.1", "numpy": "2.4.6"}
UNITS = {"digits-resnet50": 107, "digits-resnet152": 311, "phrases-transformer": 93}
STAGES = {"digits-resnet50": 107, "digits-resnet152": 150, "phrases-transformer": 93}
MICROBATCHES = {"digits-resnet50": 8}
"""16 where a network is not named"""
WEIGHTS = 1_500_000
"""Bytes"""

Row = dict[str, Any]
PARTS = ("curve", "loss", "stages", "delays", "trace")
"""What a run carries for the other frames"""


def run(
    network: str,
    method: str,
    seed: int = 0,
    *,
    final: float | None = 90.0,
    diverged_at: int | None = None,
    variant: str = "",
    curve: Mapping[int, float] | None = None,
    loss: Mapping[int, float] | None = None,
    stages: Sequence[Mapping[str, Any]] = (),
    delays: Mapping[float, int] | None = None,
    trace: Sequence[Mapping[str, Any]] = (),
    **columns: Any,
) -> Row:
    """One run: a row of `Records.runs`, with its parts of the other frames.

    Args:
        final: the final metric, in percent; None where `diverged_at` is given.
        curve: step -> metric; None: the final value at the last step.
        loss: step -> loss; None: a falling one, which ends high where the run diverged.
        stages: rows of `Records.stages` without their run (`{"stage": 1, "t2_ratio": 0.5}`).
        delays: delay in updates -> count.
        trace: rows of `Records.trace` without their run.
        columns: any column of `runs`; `set_...` those of settings.
    """
    diverged = diverged_at is not None
    row = _defaults(network, method, seed, variant) | {
        "status": "diverged" if diverged else "finished",
        "final": None if diverged else final,
        "best": None if diverged else final,
        "steps": diverged_at + 1 if diverged_at is not None else 600,
        "diverged_at": diverged_at,
    }
    row |= columns
    if curve is None:
        curve = {} if diverged or final is None else {row["steps"]: final}
    if loss is None:
        steps = row["steps"]
        loss = {step + 1: 2.3 * 0.5 ** (10 * step / steps) for step in range(0, steps, 20)}
        loss |= {row["steps"]: 99.0} if diverged else {}
    return row | dict(zip(PARTS, (curve, loss, stages, delays or {}, trace), strict=True))


def seeded(
    network: str, method: str, final: float | None, seeds: Iterable[int] = range(3), **given: Any
) -> list[Row]:
    """Runs that all end at `final`; None: all diverge."""
    at = {"diverged_at": 30} if final is None else {"final": final}
    return [run(network, method, seed, **(at | given)) for seed in seeds]


def _defaults(network: str, method: str, seed: int, variant: str) -> Row:
    p, n = STAGES.get(network, 8), MICROBATCHES.get(network, 16)
    phrases = network.startswith("phrases")
    point = f"@{variant}" if variant else ""
    flushes = method == "gpipe" or method.startswith("hogwild")
    warmup = 100 if method == "t1+t2+t3" else 0
    tau = 0.0 if method == "gpipe" else (2 * (p - 1) + 1) / n
    return {
        "table": "made",
        "cell": f"{network}{point}/{method}",
        "network": network,
        "method": method,
        "sweep": variant.partition(":")[0],
        "variant": variant,
        "seed": seed,
        "metric": "bleu" if phrases else "accuracy",
        "resolution": 0.05 if phrases else 100 / 360,
        "signature": "nrefs:1|case:mixed" if phrases else "",
        "mlflow_run_id": hashlib.md5(f"{network}{point}/{method}/{seed}".encode()).hexdigest(),
        "weights_sha256": "d" * 64,
        "config_hash": "c" * 16,
        "git_commit": "c0ffee" + "0" * 34,
        "git_dirty": "false",
        "machine": json.dumps(MACHINE),
        "versions": json.dumps(VERSIONS),
        "device": "cpu",
        "last_finite_loss": 0.1,
        "drains": 600 if flushes else 1,
        "wall_s": 120.0,
        "loop_s": 110.0,
        "tau_fwd_max": tau,
        "utilization_measured": 0.8 if flushes else 0.95,
        "utilization_model_workers": _utilization(n, 2, flushes, warmup / 600),
        "utilization_model_stages": _utilization(n, p, flushes, warmup / 600),
        "memory_weights": WEIGHTS,
        "memory_gradients": WEIGHTS,
        "memory_optimizer": WEIGHTS * (2 if phrases else 1),
        "memory_discrepancy": WEIGHTS if "t2" in method else 0,
        "memory_stash": WEIGHTS * p // n if method == "pipedream" else 0,
        "memory_activations_peak": 40_000_000,
        "units": UNITS.get(network, p),
        "set_target": 40.0 if phrases else 90.0,
        "set_stages": p,
        "set_microbatches": n,
        "set_batch_size": 8 * n,
        "set_steps": 600,
        "set_seed": seed,
        "set_optimizer": "adamw" if phrases else "sgd",
        "set_momentum": None if phrases else 0.9,
        "set_lr": 0.01,
        "set_annealing_steps": 300,
        "set_decay": 0.1,
        "set_sync_steps": 100,
        "set_segment": 0,
        "set_eval_every": 100,
        "set_engine": "pipeline",
        "set_workers": 2,
    }


def _utilization(n: int, devices: int, flushes: bool, warmup: float) -> float:
    """N/(N+K-1) where every step flushes, 1 where none does, amortised in between."""
    share = 1.0 if flushes else warmup
    return 1.0 / (share * (n + devices - 1) / n + 1.0 - share)


def made(runs: Iterable[Row], table: str = "made") -> Records:
    """The records that these runs would have left."""
    rows = list(runs)
    parts: dict[str, list[Row]] = {part: [] for part in records.COLUMNS}
    for row in rows:
        of_run = {"mlflow_run_id": row["mlflow_run_id"]}
        for name, points in (("loss", row["loss"]), (row["metric"], row["curve"])):
            parts["curves"] += [
                of_run | {"series": name, "step": step, "value": value}
                for step, value in points.items()
            ]
        parts["stages"] += [of_run | dict(stage) for stage in row["stages"]]
        parts["delays"] += [of_run | {"delay": d, "count": c} for d, c in row["delays"].items()]
        parts["trace"] += [of_run | dict(event) for event in row["trace"]]
    told = pd.DataFrame([{k: v for k, v in row.items() if k not in PARTS} for row in rows])
    as_read = pd.read_csv(io.StringIO(told.to_csv(index=False)))
    frames = {part: records.frame(part, found) for part, found in parts.items()}
    return Records(table, records.typed(as_read), **frames)
