"""The table that sums up a table's runs, a line a cell. A column is a function of the runs of one
cell, one a seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from pandas import DataFrame

from reproduce.progress import clock
from reproduce.statistics import mean_interval


def _number(key: str, digits: int, scale: float = 1.0) -> Callable[[DataFrame], str]:
    """The mean over the seeds."""

    def text(group: DataFrame) -> str:
        mean = group[key].mean()
        return "–" if mean != mean else f"{mean * scale:.{digits}f}"

    return text


def _quality(key: str) -> Callable[[DataFrame], str]:
    """The mean with its interval; none where a seed diverged, since the rest would flatter it."""

    def text(group: DataFrame) -> str:
        values = group[key].dropna().tolist()
        return mean_interval(values).text() if values and len(values) == len(group) else "–"

    return text


def _diverged(group: DataFrame) -> str:
    """At which steps, and of how many runs where some did not."""
    steps = sorted(group.loc[group["status"] == "diverged", "diverged_at"].astype(int))
    if not steps:
        return "–"
    few = f" ({len(steps)} of {len(group)})" if len(steps) < len(group) else ""
    return ", ".join(map(str, steps)) + few


def _pair(
    left: Callable[[DataFrame], str], right: Callable[[DataFrame], str]
) -> Callable[[DataFrame], str]:
    return lambda group: f"{left(group)} / {right(group)}"


MEGA = 1e-6
SUMMARY: Mapping[str, Callable[[DataFrame], str]] = {
    "cell": lambda group: str(group["cell"].iloc[0]),
    "seeds": lambda group: str(len(group)),
    "metric": lambda group: str(group["metric"].iloc[0]),
    "final": _quality("final"),
    "best": _quality("best"),
    "diverged at": _diverged,
    "steps": _number("steps", 0),
    "τ max": _number("tau_fwd_max", 2),
    "utilization": _number("utilization_measured", 2),
    "model K_w / P": _pair(
        _number("utilization_model_workers", 2), _number("utilization_model_stages", 2)
    ),
    "weights MB": _number("memory_weights", 2, MEGA),
    "δ MB": _number("memory_discrepancy", 2, MEGA),
    "stash MB": _number("memory_stash", 2, MEGA),
    "wall": lambda group: clock(group["wall_s"].sum()),
}
"""Column -> its text for the rows of one cell; – where there is nothing to tell. Numbers are means
over the seeds, the wall time is their sum."""


def markdown(runs: DataFrame) -> str:
    """The summary as a table of markdown that reads well as plain text too."""
    groups = [group for _, group in runs.groupby("cell", sort=False)]
    lines = [[text(group) for text in SUMMARY.values()] for group in groups]
    return aligned([list(SUMMARY), *lines])


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Rows of texts, the first of them the head, as an aligned table of markdown."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    ruled = [lines[0], ["-" * width for width in widths], *lines[1:]]
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in ruled)


def origin(runs: DataFrame) -> str:
    """Where runs come from: machines, versions, commits, and how long they took."""
    rows = runs.to_dict("records")
    machines = sorted({machine(row) for row in rows})
    commits = sorted({row["git_commit"][:10] + _changed(row) for row in rows})
    versions = sorted({f"torch {json.loads(row['versions'])['torch']}" for row in rows})
    took = clock(sum(float(row["wall_s"]) for row in rows))
    return (
        f"{len(rows)} runs in {took}, on {'; '.join(machines)}; {', '.join(versions)}; "
        f"commit {', '.join(commits)}."
    )


def machine(row: Mapping[Hashable, Any]) -> str:
    facts = json.loads(row["machine"])
    gpus = "".join(f", {gpu}" for gpu in facts["gpus"])
    return f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']:.0f} GiB{gpus}"


def _changed(row: Mapping[Hashable, Any]) -> str:
    return " with changes" if str(row["git_dirty"]).lower() == "true" else ""
