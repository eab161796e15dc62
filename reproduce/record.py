"""The store: every run goes to MLflow, one experiment a table."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # both are read on import
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")

from mlflow.entities import Metric, Param, Run, RunTag  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402
from mlflow.tracking import MlflowClient  # noqa: E402

from reproduce import provenance  # noqa: E402
from reproduce.cells import Cell  # noqa: E402
from reproduce.errors import BadInput  # noqa: E402
from reproduce.job import Observer, StageDelay  # noqa: E402

FLUSH_S = 5.0
FLUSH_METRICS = 500
"""MLflow takes at most 1000 metrics at once"""


def results_folder() -> Path:
    """`REPRODUCE_RESULTS`, or results/ in the working directory."""
    return Path(os.environ.get("REPRODUCE_RESULTS") or "results")


def tracking_uri() -> str:
    """`MLFLOW_TRACKING_URI`, or a SQLite file in the results folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or (
        f"sqlite:///{results_folder().resolve() / 'mlflow.db'}"
    )


def now_ms() -> int:
    return int(time.time() * 1000)


class Recorder(Observer):
    """One run on its way into the store. What it was told so far is kept even if the run fails."""

    def __init__(self, client: MlflowClient, run_id: str, metric: str) -> None:
        self.run_id, self.metric = run_id, metric
        self.losses: list[float] = []
        self.metrics: list[tuple[int, float]] = []
        self._client = client
        self._waiting: list[Metric] = []
        self._flushed = time.monotonic()

    def on_loss(self, step: int, loss: float) -> None:
        self.losses.append(loss)
        self._add("loss", loss, step)

    def on_metric(self, step: int, value: float) -> None:
        self.metrics.append((step, value))
        self._add(self.metric, value, step)

    def _add(self, key: str, value: float, step: int) -> None:
        self._waiting.append(Metric(key, value, now_ms(), step))
        late = time.monotonic() - self._flushed > FLUSH_S
        if late or len(self._waiting) >= FLUSH_METRICS:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._client.log_batch(self.run_id, metrics=self._waiting)
        self._waiting, self._flushed = [], time.monotonic()

    def delays(self, delays: Iterable[StageDelay]) -> None:
        """tau_fwd and tau_bkwd as curves over the stage number."""
        for delay in delays:
            for key in ("tau_fwd", "tau_bkwd"):
                tau = getattr(delay, key)
                if tau is not None:
                    self._add(key, float(tau), delay.stage)

    def end(
        self, state: str, numbers: Mapping[str, float | None], tags: Mapping[str, object]
    ) -> None:
        """Close the run as FINISHED, FAILED or KILLED, with its last numbers and tags."""
        for key, value in numbers.items():
            if value is not None and math.isfinite(value):
                self._add(key, float(value), 0)
        self.flush()
        self._client.log_batch(self.run_id, tags=_tags(tags))
        self._client.set_terminated(self.run_id, state)


class Store:
    """The records of one table."""

    def __init__(self, table: str) -> None:
        """Raises BadInput where there is no such store and none can be made."""
        self.uri = tracking_uri()
        try:
            if self.uri.startswith("sqlite:"):
                results_folder().mkdir(parents=True, exist_ok=True)
            self.client = MlflowClient(self.uri)
            self.experiment_id = self._experiment(table)
        except (MlflowException, OSError) as error:
            first = str(error).strip().split("\n")[0]
            raise BadInput(
                f"no store at {self.uri}: {first}; mend MLFLOW_TRACKING_URI or REPRODUCE_RESULTS"
            ) from error

    def _experiment(self, table: str) -> str:
        found = self.client.get_experiment_by_name(table)
        if found is None:
            local = self.uri.startswith("sqlite:")
            place = (results_folder() / "artifacts").resolve().as_uri() if local else None
            return str(self.client.create_experiment(table, artifact_location=place))
        if found.lifecycle_stage == "deleted":
            raise BadInput(
                f"experiment {table!r} was deleted in {self.uri}; restore it, or mlflow gc"
            )
        return str(found.experiment_id)

    def start(self, cell: Cell, metric: str, facts: Mapping[str, object]) -> Recorder:
        """Open a run of a cell; `facts` become tags."""
        tags = {
            "cell": cell.name,
            "table": cell.table,
            "status": "running",
            "config_hash": cell.config_hash,
            "metric": metric,
            "command": provenance.command(),
            "git_commit": provenance.git()["commit"],
            "git_dirty": provenance.git()["dirty"],
            "versions": provenance.versions(),
            "machine": provenance.machine(),
            "device": "cpu",
            **facts,
        }
        with contextlib.suppress(OSError):  # no /proc: such a run is never taken for dead
            tags["process"] = provenance.process(os.getpid())
        run = self.client.create_run(
            self.experiment_id, tags={k: str(v) for k, v in tags.items()}, run_name=cell.name
        )
        settings = cell.settings.model_dump() | {
            "network": cell.network_name,
            "method": cell.method.name,
            "units": len(cell.network()),
        }
        params = [Param(key, str(value)) for key, value in settings.items()]
        self.client.log_batch(run.info.run_id, params=params)
        return Recorder(self.client, run.info.run_id, metric)

    def finished(self) -> dict[str, Run]:
        """The newest finished run of each configuration, by its hash."""
        newest: dict[str, Run] = {}
        for run in self._runs("FINISHED"):
            newest.setdefault(run.data.tags.get("config_hash", ""), run)
        return newest

    def repair(self) -> int:
        """Close runs that a dead process left open; how many."""
        dead = [
            run.info.run_id
            for run in self._runs("RUNNING")
            if provenance.process_is_gone(run.data.tags.get("process", ""))
        ]
        for run_id in dead:
            tags = {"status": "killed", "error": "its process ended without closing it"}
            self.client.log_batch(run_id, tags=_tags(tags))
            self.client.set_terminated(run_id, "KILLED")
        return len(dead)

    def _runs(self, state: str) -> Iterator[Run]:
        """Newest first."""
        token: str | None = None
        while True:
            page = self.client.search_runs(
                [self.experiment_id],
                f"attributes.status = '{state}'",
                order_by=["attributes.start_time DESC"],
                page_token=token,
            )
            yield from page
            token = page.token
            if not token:
                return


def _tags(tags: Mapping[str, Any]) -> list[RunTag]:
    """MLflow keeps 8000 characters of a tag; the end of a message says most."""
    return [RunTag(key, str(value)[-8000:]) for key, value in tags.items() if value is not None]
