"""The store: every run goes to MLflow, one experiment a table."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from reproduce import provenance
from reproduce.cells import Cell
from reproduce.errors import BadInput
from reproduce.record import Recorder, run_tags
from reproduce.tracking import (
    MlflowClient,
    MlflowException,
    Param,
    Run,
    opening,
    results_folder,
    tracking_uri,
)


@contextlib.contextmanager
def few_retries() -> Iterator[None]:
    """A server that is not there is told at once; one that goes away later may come back."""
    key = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
    mine = key not in os.environ
    if mine:
        os.environ[key] = "1"
    try:
        yield
    finally:
        if mine:
            del os.environ[key]


class Store:
    """The records of one table."""

    def __init__(self, table: str) -> None:
        """Raises BadInput where there is no such store and none can be made."""
        self.uri = tracking_uri()
        try:
            # MLflow makes a database's tables at the first use of it.
            with opening() if self.uri.startswith("sqlite:") else contextlib.nullcontext():
                self.client = MlflowClient(self.uri)
                with few_retries():
                    self.experiment_id = self._experiment(table)
        except (MlflowException, OSError) as error:
            first = str(error).strip().split("\n")[0]
            raise BadInput(
                f"no store at {self.uri}: {first}; mend MLFLOW_TRACKING_URI or REPRODUCE_RESULTS"
            ) from error

    @property
    def artifacts(self) -> Path:
        """Where the files of runs are, in a store in the results folder."""
        return results_folder() / "artifacts"

    def _experiment(self, table: str) -> str:
        found = self.client.get_experiment_by_name(table)
        if found is None:
            local = self.uri.startswith("sqlite:")
            place = self.artifacts.resolve().as_uri() if local else None
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
            "sweep": cell.sweep,
            "table": cell.table,
            "status": "running",
            "config_hash": cell.config_hash,
            "metric": metric,
            "command": provenance.command(),
            "git_commit": provenance.git()["commit"],
            "git_dirty": provenance.git()["dirty"],
            "versions": provenance.versions(),
            "machine": provenance.machine(),
            **facts,
        }
        with contextlib.suppress(OSError):  # no /proc: such a run is never taken for dead
            tags["process"] = provenance.process(os.getpid())
        run = self.client.create_run(
            self.experiment_id, tags={k: str(v) for k, v in tags.items()}, run_name=cell.title
        )
        settings = cell.settings.model_dump() | {
            "network": cell.network_name,
            "method": cell.method.name,
            "units": len(cell.network()),
        }
        params = [Param(key, str(value)) for key, value in settings.items()]
        self.client.log_batch(run.info.run_id, params=params)
        local = self.artifacts if self.uri.startswith("sqlite:") else None
        return Recorder(self.client, run.info.run_id, metric, local)

    def finished(self) -> dict[str, Run]:
        """The newest finished run of each configuration, by its hash."""
        newest: dict[str, Run] = {}
        for run in self._runs("FINISHED"):
            newest.setdefault(run.data.tags.get("config_hash", ""), run)
        return newest

    def series(self, run: Run, key: str) -> list[tuple[int, float]]:
        """(step, value) of a metric of a run, the last value of each step, in the order of steps;
        empty where it has no such metric."""
        if key not in run.data.metrics:
            return []
        history = self.client.get_metric_history(run.info.run_id, key)
        return sorted({point.step: point.value for point in history}.items())

    def knows(self, run_id: str) -> bool:
        """Whether the store ever had this run; a deleted one counts."""
        try:
            self.client.get_run(run_id)
        except MlflowException:
            return False
        return True

    def text(self, run: Run, name: str) -> str:
        """An artifact of a run. Also from a results folder that was moved since.

        Raises:
            BadInput: there is none.
        """
        here: Path = self.artifacts / run.info.run_id / "artifacts" / name
        try:
            if here.exists():
                return here.read_text(encoding="utf-8")
            found = Path(self.client.download_artifacts(run.info.run_id, name))
            return found.read_text(encoding="utf-8")
        except (MlflowException, OSError) as error:
            raise BadInput(
                f"run {run.info.run_id} has lost its artifact {name}: {error}; delete the run and "
                "run its cell again"
            ) from error

    def repair(self) -> int:
        """Close runs that a dead process left open; how many."""
        dead = [
            run.info.run_id
            for run in self._runs("RUNNING")
            if provenance.process_is_gone(run.data.tags.get("process", ""))
        ]
        for run_id in dead:
            tags = {"status": "killed", "error": "its process ended without closing it"}
            self.client.log_batch(run_id, tags=run_tags(tags))
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
