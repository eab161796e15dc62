"""What one run came to, as the JSON of `run --json` and as the numbers in the store."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from fractions import Fraction
from typing import Any

from reproduce.cells import Cell
from reproduce.job import Memory, Outcome, StageDelay
from reproduce.record import Recorder
from reproduce.schedule import gpipe_utilization

Report = dict[str, Any]


def report(
    cell: Cell, status: str, recorder: Recorder, wall_s: float, outcome: Outcome | None = None
) -> Report:
    """The report of a run that is over; without an outcome, of what was seen before it failed.

    A run that did not reach its last step has no final metric.
    """
    values = [value for _, value in recorder.metrics if math.isfinite(value)]
    settings = cell.settings
    steps = outcome.steps if outcome else len(recorder.losses)
    return {
        "cell": cell.name,
        "status": status,
        "metric": {
            "name": recorder.metric,
            "final": values[-1] if values and status == "finished" else None,
            "best": max(values, default=None),
        },
        "scores": dict(outcome.scores) if outcome else {},
        "steps": steps,
        "diverged_at": outcome.diverged_at if outcome else None,
        "last_finite_loss": last_finite(recorder.losses),
        "drains": outcome.drains if outcome else None,
        "weights_sha256": outcome.weights_sha256 if outcome else None,
        "delays": [delay_entry(delay) for delay in outcome.delays] if outcome else [],
        "approximation": [
            {"stage": a.stage, "ratio": a.ratio, "distance": a.distance}
            for a in (outcome.approximation if outcome else [])
        ],
        "delay_histogram": [
            {"delay": delay, "count": count}
            for delay, count in (outcome.drawn_delays if outcome else {}).items()
        ],
        "utilization": {
            "measured": outcome.utilization if outcome else None,
            "model_workers": utilization_model(cell, cell.workers, steps),
            "model_stages": utilization_model(cell, settings.stages, steps),
        },
        "memory": memory_entry(outcome.memory if outcome else None),
        "wall_s": outcome.wall_s if outcome else wall_s,
        "loop_s": outcome.loop_s if outcome else None,
        "seed": settings.seed,
        "engine": settings.engine,
        "workers": cell.workers,
        "mlflow_run_id": recorder.run_id,
    }


def last_finite(losses: Sequence[float]) -> float | None:
    return next((loss for loss in reversed(losses) if math.isfinite(loss)), None)


def memory_entry(memory: Memory | None) -> dict[str, int | None]:
    """Bytes by what they hold; None each where the engine did not count."""
    return {f.name: getattr(memory, f.name, None) for f in fields(Memory)}


def delay_entry(delay: StageDelay) -> dict[str, Any]:
    """tau in updates, as a number and as the exact fraction; None where none was counted."""
    entry: dict[str, Any] = {"stage": delay.stage}
    for key in ("tau_fwd", "tau_bkwd"):
        tau: Fraction | None = getattr(delay, key)
        entry[key] = None if tau is None else float(tau)
        entry[f"{key}_fraction"] = None if tau is None else str(tau)
    return entry


def utilization_model(cell: Cell, devices: int, steps: int) -> float:
    """N / (N + devices - 1) on a schedule that flushes, 1 on one that does not, or on none.

    A warm-up of a fraction f of the steps at utilization u takes f / u of the time that those
    steps would take without flushes: together 1 / (f / u + 1 - f).
    """
    if cell.method.lockfree:
        return 1.0
    flushing = gpipe_utilization(devices, cell.settings.microbatches)
    if cell.method.schedule == "gpipe":
        return flushing
    warmup = min(cell.settings.sync_steps, steps) if cell.method.warmup else 0
    f = warmup / steps if steps else 0.0
    return 1.0 / (f / flushing + 1.0 - f)


def numbers(report: Report) -> dict[str, float | None]:
    """The report's numbers under flat names, for the store."""
    taus = [d["tau_fwd"] for d in report["delays"] if d["tau_fwd"] is not None]
    flat: dict[str, float | None] = {
        "final": report["metric"]["final"],
        "best": report["metric"]["best"],
        "tau_fwd_max": max(taus, default=None),
    }
    for key in ("steps", "diverged_at", "last_finite_loss", "drains", "wall_s", "loop_s"):
        flat[key] = report[key]
    flat |= {f"score_{name}": value for name, value in report["scores"].items()}
    for group in ("utilization", "memory"):
        flat |= {f"{group}_{key}": value for key, value in report[group].items()}
    return flat
