"""The benchmark's numbers as JSON and as a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from reproduce import provenance
from reproduce.bench.figures import Result
from reproduce.bench.measure import Log, spread
from reproduce.bench.workload import DEEP_STAGES, WORKERS, Sizes, deep_job, mlp_job


def as_json(
    results: Sequence[Result], log: Log, sizes: Sizes, quick: bool, load: float | None
) -> dict[str, Any]:
    """Every figure's median under its own key (null: see `reasons`), then what a reader needs to
    judge it. Numbers are rounded to six digits."""
    found: dict[str, Any] = {}
    for result in results:
        key = result.figure.key
        found[key] = digits(result.spread.median) if result.spread else None
        if result.figure.model is not None:
            found[f"{key}_model"] = digits(result.figure.model)
            found[f"{key}_deviation"] = result.deviation and digits(result.deviation)
    return found | {
        "reasons": {r.figure.key: r.reason for r in results if r.reason is not None},
        "meaning": {r.figure.key: r.figure.meaning for r in results},
        "spread": {r.figure.key: rounded(asdict(r.spread)) for r in results if r.spread},
        "seconds_per_microbatch": seconds(log),
        "quick": quick,
        "workload": workload(sizes),
        "runs": runs(log),
        "machine": json.loads(provenance.machine()),
        "load_before": load,
        "versions": json.loads(provenance.versions()),
        "code": provenance.git(),
        "command": provenance.command(),
    }


def digits(value: float) -> float:
    return float(f"{value:.6g}")


def rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: [digits(v) for v in value] if isinstance(value, list) else digits(value)
        for key, value in values.items()
    }


def seconds(log: Log) -> dict[str, dict[str, Any]]:
    """`group/contestant` -> spread over the rounds."""
    names = dict.fromkeys((entry.group, entry.contestant) for entry in log.entries)
    return {
        f"{group}/{name}": rounded(
            asdict(spread([t.seconds_per_microbatch for t in log.timings(group, name)]))
        )
        for group, name in names
        if (group, name) not in log.missing
    }


def runs(log: Log) -> list[dict[str, Any]]:
    """Every run in the order of execution."""
    return [
        {
            "group": entry.group,
            "round": entry.round,
            "contestant": entry.contestant,
            "seconds": digits(entry.timing.seconds),
            "steps": entry.timing.steps,
            "microbatches": entry.timing.microbatches,
            "utilization": entry.timing.utilization,
        }
        for entry in log.entries
    ]


def workload(sizes: Sizes) -> dict[str, Any]:
    """The models and how much of them was run."""
    wide, deep = mlp_job(sizes, "async", 1), deep_job(sizes, DEEP_STAGES)
    return {
        "workers": WORKERS,
        "threads_per_worker": 1,
        "wide": f"{wide.network.name}: {sizes.units} equal Linear+ReLU units of {sizes.width}",
        "deep": f"{deep.network.name}, width 8, {len(deep.network)} units, 8x8 images",
        "optimizer": f"SGD, lr {sizes.lr}",
        "dtype": str(wide.dtype),
        **asdict(sizes),
    }


def as_table(found: dict[str, Any]) -> str:
    """The figures, one a line, under what they were measured on."""
    machine, size = found["machine"], found["workload"]
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, torch {found['versions']['torch']}; "
        f"{size['rounds']} interleaved rounds",
        f"wide: {size['wide']}, {size['samples']} samples a micro-batch, "
        f"{size['microbatches']} micro-batches a run, P = {size['stages']} on 2 workers",
        f"deep: {size['deep']}, {size['deep_samples']} samples a micro-batch, "
        f"{size['deep_microbatches']} micro-batches a run",
        "",
        f"{'':36}{'median':>7}   {'quartiles':^13}   {'model':>5}",
    ]
    for key, meaning in found["meaning"].items():
        lines.append(f"{key:36}{_numbers(found, key)}   {meaning}")
    return "\n".join(lines)


def _numbers(found: dict[str, Any], key: str) -> str:
    if key not in found["spread"]:
        return f"{'-':>7}   not measured: {found['reasons'][key]};"
    values, model = found["spread"][key], found.get(f"{key}_model")
    shown = f"{model:5.2f}" if model is not None else " " * 5
    return f"{values['median']:7.3f}   {values['q1']:5.3f} – {values['q3']:5.3f}   {shown}"
