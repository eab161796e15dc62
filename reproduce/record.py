"""One run on its way into MLflow: metrics in batches, and how it ended."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from reproduce.job import Observer, Outcome, StageApproximation, StageDelay
from reproduce.tracking import Metric, MlflowClient, RunTag

FLUSH_S = 5.0
FLUSH_METRICS = 500
"""MLflow takes at most 1000 metrics at once"""


def now_ms() -> int:
    return int(time.time() * 1000)


class Recorder(Observer):
    """One run on its way into the store. What it was told so far is kept even if the run fails."""

    def __init__(
        self, client: MlflowClient, run_id: str, metric: str, artifacts: Path | None = None
    ) -> None:
        """`artifacts`: the folder of a local store's files, wherever it stands by now; MLflow
        itself remembers where the store was made."""
        self.run_id, self.metric, self._artifacts = run_id, metric, artifacts
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

    def approximation(self, stages: Iterable[StageApproximation]) -> None:
        """How well T2 knew the forward weights, as curves over the stage number."""
        for stage in stages:
            for key, value in (("t2_ratio", stage.ratio), ("t2_distance", stage.distance)):
                if value is not None:
                    self._add(key, value, stage.stage)

    def drawn_delays(self, counts: Mapping[int, int]) -> None:
        """How many updates had which delay, as a curve over the delay."""
        for delay, count in counts.items():
            self._add("delay_count", float(count), delay)

    def outcome(self, outcome: Outcome) -> None:
        """What a run that is over left besides its curves and its last numbers."""
        self.delays(outcome.delays)
        self.approximation(outcome.approximation)
        self.drawn_delays(outcome.drawn_delays)
        for name, text in outcome.texts.items():
            self.artifact(name, text)

    def artifact(self, name: str, text: str) -> None:
        """Keep a text with the run, as a file of this name."""
        if self._artifacts is None:
            self._client.log_text(self.run_id, text, name)
            return
        folder = self._artifacts / self.run_id / "artifacts"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")

    def end(
        self, state: str, numbers: Mapping[str, float | None], tags: Mapping[str, object]
    ) -> None:
        """Close the run as FINISHED, FAILED or KILLED, with its last numbers and tags."""
        for key, value in numbers.items():
            if value is not None and math.isfinite(value):
                self._add(key, float(value), 0)
        self.flush()
        self._client.log_batch(self.run_id, tags=run_tags(tags))
        self._client.set_terminated(self.run_id, state)


def run_tags(tags: Mapping[str, Any]) -> list[RunTag]:
    """MLflow keeps 8000 characters of a tag; the end of a message says most."""
    return [RunTag(key, str(value)[-8000:]) for key, value in tags.items() if value is not None]
