"""The study's own run in MLflow, which the runs of its trials hang on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from optuna import Study

from ablations.tuning.study import me
from reproduce import provenance
from reproduce.record import Recorder
from reproduce.store import Store
from reproduce.tracking import MlflowException


class Parent:
    """Made with the study's first command in this store, and open again with every later one.

    To be made by one process at a time.
    """

    def __init__(self, store: Store, study: Study) -> None:
        self._client = store.client
        # A study that several machines share may have a store on each.
        key = f"mlflow run {hashlib.sha256(store.uri.encode()).hexdigest()[:8]}"
        self.run_id: str = study.user_attrs.get(key, "")
        if not self._there():
            tags = {"study": study.study_name, "git_commit": provenance.git()["commit"]}
            run = self._client.create_run(
                store.experiment_id, tags=tags, run_name=f"study {study.study_name}"
            )
            self.run_id = run.info.run_id
            study.set_user_attr(key, self.run_id)
        self._client.update_run(self.run_id, status="RUNNING")
        self._client.set_tag(self.run_id, "process", me())
        artifacts = store.artifacts if store.uri.startswith("sqlite:") else None
        self._recorder = Recorder(self._client, self.run_id, "best", artifacts)

    def _there(self) -> bool:
        try:
            run = self._client.get_run(self.run_id) if self.run_id else None
        except MlflowException:
            return False
        return run is not None and run.info.lifecycle_stage == "active"

    def tell(self, numbers: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """The outcome: metrics, and files by name."""
        for key, value in numbers.items():
            self._client.log_metric(self.run_id, key, value)
        for name, text in texts.items():
            self._recorder.artifact(name, text)

    def close(self, state: str) -> None:
        """As FINISHED, FAILED or KILLED."""
        self._client.set_terminated(self.run_id, state)
