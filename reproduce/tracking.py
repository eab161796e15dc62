"""MLflow as this project uses it: quiet, on SQLite in the results folder unless told otherwise.

The one place that imports it, so that its settings are made before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from reproduce.errors import BadInput

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")

from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

__all__ = [
    "Metric",
    "MlflowClient",
    "MlflowException",
    "Param",
    "Run",
    "RunTag",
    "opening",
    "results_folder",
    "tracking_uri",
]


def results_folder() -> Path:
    """`REPRODUCE_RESULTS`, or results/ in the working directory."""
    return Path(os.environ.get("REPRODUCE_RESULTS") or "results")


@contextmanager
def opening() -> Iterator[None]:
    """One process at a time opens a store: the first one makes its tables. Not for long work.

    Raises:
        BadInput: the results folder cannot be written.
    """
    folder = results_folder()
    lock = FileLock(folder / ".opening.lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise BadInput(
            f"results folder {folder}: {error.strerror}; set REPRODUCE_RESULTS to one that can be "
            "written"
        ) from error
    try:
        yield
    finally:
        lock.release()


def tracking_uri() -> str:
    """`MLFLOW_TRACKING_URI`, or a SQLite file in the results folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or (
        f"sqlite:///{results_folder().resolve() / 'mlflow.db'}"
    )
