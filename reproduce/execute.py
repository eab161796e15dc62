"""Train one cell and record how it ended, whatever the end."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping, Sequence

from reproduce.cells import Cell
from reproduce.escapes import EscapesInterception
from reproduce.job import Job, Observer, WorkerFailed
from reproduce.progress import Progress, clock
from reproduce.record import Recorder
from reproduce.report import Report, numbers, report
from reproduce.store import Store
from reproduce.train import train

EXIT = {"finished": 0, "diverged": 0, "pruned": 0, "failed": 1, "refused": 2, "killed": 130}
"""Exit code by how a run ended"""
STATES = {"finished": "FINISHED", "diverged": "FINISHED", "pruned": "KILLED", "killed": "KILLED"}
"""MLflow's word for it; FAILED for the rest"""


class Pruned(Exception):
    """Raised by an observer to end the run that it watches; the message says why."""


class All(Observer):
    """The store, the progress display and whoever else watches hear the same."""

    def __init__(self, *observers: Observer) -> None:
        self.observers = observers

    def on_loss(self, step: int, loss: float) -> None:
        for observer in self.observers:
            observer.on_loss(step, loss)

    def on_metric(self, step: int, value: float) -> None:
        for observer in self.observers:
            observer.on_metric(step, value)


def execute(
    cell: Cell,
    job: Job,
    store: Store,
    progress: Progress,
    tags: Mapping[str, str] | None = None,
    watchers: Sequence[Observer] = (),
) -> tuple[Report, str]:
    """Train the cell. Returns its report and how it ended, a key of `EXIT`.

    Args:
        tags: further ones of the run in the store.
        watchers: hear what the run tells, after it was recorded; one may raise `Pruned`.

    Errors and an interrupt end the run in the store as well, and are told through `progress`.
    """
    task = job.task()
    facts = {
        "device": job.device,
        "resolution": task.resolution(),
        "signature": getattr(task, "signature", ""),
        **(tags or {}),
    }
    recorder, started = store.start(cell, task.metric, facts), time.monotonic()
    progress.begin(cell, task.metric)
    end, error, outcome = "failed", "", None
    try:
        outcome = train(cell, job, All(recorder, progress, *watchers))
        recorder.outcome(outcome)
        end = outcome.status
    except KeyboardInterrupt:
        end, error = "killed", "interrupted"
    except Pruned as stop:
        end, error = "pruned", str(stop)
    except (EscapesInterception, WorkerFailed) as raised:
        end = "refused" if isinstance(raised, EscapesInterception) else "failed"
        error = str(raised)
    except Exception:  # whatever it was, the store must say so
        error = traceback.format_exc()
    finally:
        progress.end()
    status = "failed" if end == "refused" else end
    found = report(cell, status, recorder, time.monotonic() - started, outcome)
    close(recorder, found, STATES.get(end, "FAILED"), error)
    progress.say(f"{cell.title}  {end}{f': {error}' if error else headline(found)}")
    return found, end


def headline(found: Report) -> str:
    """The rest of the line that ends a run."""
    if found["status"] == "diverged":
        last = _text(found["last_finite_loss"], ".4g")
        return f" at step {found['diverged_at']}, last finite loss {last}"
    metric = found["metric"]
    return (
        f": {metric['name']} {_text(metric['final'], '.2f')}, "
        f"best {_text(metric['best'], '.2f')}, "
        f"{found['steps']} steps in {clock(found['wall_s'])}"
    )


def _text(value: float | None, form: str) -> str:
    return "none" if value is None else format(value, form)


def close(recorder: Recorder, found: Report, state: str, error: str) -> None:
    """The last words of a run in the store."""
    tags = {
        "status": found["status"],
        "weights_sha256": found["weights_sha256"],
        "diverged_at": found["diverged_at"],
        "last_finite_loss": found["last_finite_loss"],
        "error": error or None,
    }
    recorder.end(state, numbers(found), tags)
