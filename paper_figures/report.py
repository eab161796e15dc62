"""`report.html`: claims, figures and every run on one page that needs nothing beside itself."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import jinja2
from pandas import DataFrame

from paper_figures.material import Material
from paper_figures.style import COLUMN_WIDTH, TEXT_WIDTH, VERDICTS
from reproduce import summary
from reproduce.export import missing
from reproduce.progress import clock

HERE = Path(__file__).parent
Run = Mapping[Hashable, Any]


@dataclass(frozen=True)
class Picture:
    """A figure of the report, or why it is not there."""

    name: str
    caption: str
    path: Path | None
    """Its PNG"""
    reason: str = ""

    inches: float = TEXT_WIDTH

    @property
    def wide(self) -> bool:
        """Too wide for a phone without scrolling."""
        return self.inches > COLUMN_WIDTH

    @property
    def source(self) -> str:
        """The PNG as a data URI."""
        assert self.path is not None
        return f"data:image/png;base64,{base64.b64encode(self.path.read_bytes()).decode()}"


def page(material: Material, pictures: list[Picture]) -> str:
    """The report as HTML; every text of the records is escaped."""
    records = material.records
    named = {picture.name: picture for picture in pictures}
    of_claims = {c.id: named.pop(c.id.lower()) for c in material.claims if c.id.lower() in named}
    named.pop("claims", None)  # the page has the table itself
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("report.html.j2").render(
        table=records.table,
        claims=material.claims,
        marks={str(verdict): mark for verdict, (mark, _) in VERDICTS.items()},
        of_claims=of_claims,
        pictures=list(named.values()),
        columns=list(COLUMNS),
        texts=[place for place, name in enumerate(COLUMNS) if name in TEXTS],
        grid=rows(records.runs[records.runs["sweep"] == ""]),
        sweeps=rows(records.runs[records.runs["sweep"] != ""]),
        missing=[run.title for run in missing(material.table, records)],
        origin=summary.origin(records.runs),
        versions=_versions(records.runs),
        server=tracking_server(),
    )


def tracking_server() -> str:
    """Where MLflow's UI is, if records are kept on a server; else nothing. Without the user, the
    password and the query that the address may have: the page is there to be sent around."""
    parts = urlsplit(os.environ.get("MLFLOW_TRACKING_URI", ""))
    if parts.scheme not in ("http", "https"):
        return ""
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))


def _text(key: str) -> Callable[[Run], tuple[str, str]]:
    return lambda run: (str(run.get(key, "")), str(run.get(key, "")))


def _number(key: str, digits: int, scale: float = 1.0) -> Callable[[Run], tuple[str, str]]:
    def told(run: Run) -> tuple[str, str]:
        value = run.get(key)
        if value is None or value != value or value == "":
            return "–", ""
        return f"{float(value) * scale:.{digits}f}", repr(float(value))

    return told


def _wall(run: Run) -> tuple[str, str]:
    return clock(float(run["wall_s"])), repr(float(run["wall_s"]))


COLUMNS: dict[str, Callable[[Run], tuple[str, str]]] = {
    "cell": _text("cell"),
    "seed": _number("seed", 0),
    "status": _text("status"),
    "metric": _text("metric"),
    "final": _number("final", 2),
    "best": _number("best", 2),
    "steps": _number("steps", 0),
    "diverged at": _number("diverged_at", 0),
    "τ max": _number("tau_fwd_max", 2),
    "utilization": _number("utilization_measured", 2),
    "model, K_w": _number("utilization_model_workers", 2),
    "model, P": _number("utilization_model_stages", 2),
    "weights MB": _number("memory_weights", 2, 1e-6),
    "optimizer MB": _number("memory_optimizer", 2, 1e-6),
    "δ MB": _number("memory_discrepancy", 2, 1e-6),
    "stash MB": _number("memory_stash", 2, 1e-6),
    "activations MB": _number("memory_activations_peak", 1, 1e-6),
    "wall": _wall,
}
"""Column of the table of runs -> what it says of a run, and what it is sorted by"""


TEXTS = ("cell", "status", "metric")


def rows(runs: DataFrame) -> list[dict[str, Any]]:
    """Each run's id and its texts, in the order of the table."""
    return [
        {"id": str(run["mlflow_run_id"]), "cells": [told(run) for told in COLUMNS.values()]}
        for run in runs.to_dict("records")
    ]


def _versions(runs: DataFrame) -> list[dict[str, Any]]:
    """Each machine with the libraries and commits of its runs."""
    found = []
    keys = ["machine", "versions", "git_commit", "git_dirty"]
    for (_, versions, commit, dirty), group in runs.groupby(keys, sort=False):
        changed = " with changes" if str(dirty).lower() == "true" else ""
        libraries = ", ".join(f"{name} {number}" for name, number in json.loads(versions).items())
        found.append(
            {
                "machine": summary.machine(group.iloc[0].to_dict()),
                "libraries": libraries,
                "commit": f"{commit}{changed}",
                "runs": len(group),
            }
        )
    return found
