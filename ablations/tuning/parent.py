"""The study's own run in MLflow, which the runs of its trials hang on."""

from __future__ import annotations

from collections.abc import Mapping

from optuna import Study

from ablations.tuning.study import me
from reproduce import provenance
from reproduce.record import Recorder
from reproduce.store import Store

ATTRIBUTE = "mlflow_run_id"


class Parent:
    """Made with the study's first command, and open again with every later one."""

    def __init__(self, store: Store, study: Study) -> None:
        self._client = store.client
        run_id = study.user_attrs.get(ATTRIBUTE, "")
        if not run_id or not store.knows(run_id):
            tags = {"study": study.study_name, "git_commit": provenance.git()["commit"]}
            run = self._client.create_run(
                store.experiment_id, tags=tags, run_name=f"study {study.study_name}"
            )
            study.set_user_attr(ATTRIBUTE, run.info.run_id)
            run_id = study.user_attrs[ATTRIBUTE]
            if run_id != run.info.run_id:  # another process was later, and is the study's
                self._client.delete_run(run.info.run_id)
        self.run_id: str = run_id
        self._client.update_run(run_id, status="RUNNING")
        self._client.set_tag(run_id, "process", me())
        artifacts = store.artifacts if store.uri.startswith("sqlite:") else None
        self._recorder = Recorder(self._client, run_id, "best", artifacts)

    def tell(self, numbers: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """The outcome: metrics, and files by name."""
        for key, value in numbers.items():
            self._client.log_metric(self.run_id, key, value)
        for name, text in texts.items():
            self._recorder.artifact(name, text)

    def close(self, state: str) -> None:
        """As FINISHED or KILLED."""
        self._client.set_terminated(self.run_id, state)
