"""What happens when a worker dies or raises: who, where and why is said soon, and nobody is left.

Each failure is provoked inside the real engine: a unit that kills its own process, raises, exits or
sleeps in its n-th pass; a signal from outside; an error in the process that listens. After each of
them no worker process may exist, and the next run must work.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from core_cases import Affine, Regression, assert_same, dense, make_job, network
from torch import Tensor

from models.unit import Boundary
from reproduce.engine import run_pipeline
from reproduce.job import Job, Observer, WorkerFailed
from reproduce.reference import run_reference

SOON_S = 15.0
"""A failure must be told within this time"""
WIDTH = 6
STAGES = 3


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """A run that hangs fails its test instead of stopping all of them."""

    def ring(*_: object) -> None:
        raise TimeoutError("the run hangs")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def in_worker() -> bool:
    return multiprocessing.parent_process() is not None


class Bomb(Affine):
    """A linear layer that writes down its process, and goes off in its `at`-th forward pass."""

    def __init__(self, folder: Path, stage: int, what: str, at: int = 4) -> None:
        super().__init__(WIDTH, WIDTH)
        self.folder, self.stage, self.what, self.at = folder, stage, what, at
        self.passes = 0

    def forward(self, x: Tensor, *rest: Tensor) -> Boundary:
        if x.is_meta or not in_worker():
            return super().forward(x, *rest)
        if self.passes == 0:
            (self.folder / f"new{self.stage}").write_text(str(os.getpid()))
            (self.folder / f"new{self.stage}").rename(self.folder / f"pid{self.stage}")
        self.passes += 1
        if self.passes == self.at + 1:
            self.go_off(x)
        return super().forward(x, *rest)

    def go_off(self, x: Tensor) -> None:
        match self.what.split():
            case ["raise"]:
                raise ArithmeticError(f"boom on stage {self.stage}")
            case ["raise", "backward"]:
                x.register_hook(partial(_raise, self.stage))
            case ["signal", number]:
                os.kill(os.getpid(), int(number))
            case ["exit", code]:
                os._exit(int(code))
            case ["sleep"]:
                time.sleep(300)


def _raise(stage: int, _: Tensor) -> Tensor:
    raise ArithmeticError(f"boom on stage {stage}")


def bombs(folder: Path, stage: int, what: str, method: str = "t1+t2", **settings: object) -> Job:
    """Stage 1..3 of which one goes off; the others only write down their process."""
    units = [partial(Bomb, folder, i, what if i == stage else "") for i in range(1, STAGES + 1)]
    settings = {"stages": STAGES, "microbatches": 2, "steps": 40, **settings}
    return make_job(network(*units), settings.pop("task", Regression), method, **settings)


def children_of_forkserver() -> set[int]:
    """Processes that torch's launcher started and that still are."""
    from multiprocessing.forkserver import _forkserver

    found = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == _forkserver._forkserver_pid:
            found.add(int(entry.parent.name))
    return found


def fails(job: Job, workers: int, **settings: object) -> str:
    """Runs a job that must fail; the message. Checks that it came soon and nobody is left."""
    started = time.monotonic()
    with pytest.raises(WorkerFailed) as raised:
        run_pipeline(job, workers, **settings)
    assert time.monotonic() - started < SOON_S
    assert children_of_forkserver() == set()
    return str(raised.value)


@pytest.mark.parametrize("method", ["gpipe", "t1+t2"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_killed_worker_is_named_with_what_it_was_doing(
    stage: int, method: str, tmp_path: Path
) -> None:
    """Passes count from 0, so the fifth is that of micro-batch 4."""
    message = fails(bombs(tmp_path, stage, "signal 9", method), 3)
    assert message == (
        f"worker {stage - 1} of 3 was ended by SIGKILL while in the forward of stage {stage}, "
        "micro-batch 4"
    )


def test_a_killed_worker_that_is_alone(tmp_path: Path) -> None:
    message = fails(bombs(tmp_path, 2, "signal 9"), 1)
    assert message.startswith("worker 0 of 1 was ended by SIGKILL while in the forward of stage 2")


def test_the_next_run_works(tmp_path: Path) -> None:
    fails(bombs(tmp_path, 2, "signal 9"), 3)
    job = make_job(dense(4), Regression, "t1+t2")
    assert_same(run_pipeline(job, 3), run_reference(job))
    assert children_of_forkserver() == set()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_worker_killed_from_outside_while_it_waits(number: int, tmp_path: Path) -> None:
    """Stage 1 sleeps for minutes, so workers 1 and 2 wait; worker 1 is killed, worker 0 must go
    as well although it hears nothing."""

    def kill() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if all((tmp_path / f"pid{i}").exists() for i in (1, 2, 3)):
                break
            time.sleep(0.05)
        time.sleep(0.5)
        os.kill(int((tmp_path / "pid2").read_text()), number)

    killer = threading.Thread(target=kill)
    killer.start()
    message = fails(bombs(tmp_path, 1, "sleep"), 3)
    killer.join()
    name = signal.Signals(number).name
    assert re.fullmatch(
        rf"worker 1 of 3 was ended by {name} while waiting for .* at stage 2", message
    ), message


@pytest.mark.parametrize(
    ("what", "stage", "workers"),
    [
        ("raise", 1, 1),
        ("raise", 1, 3),
        ("raise", 2, 3),
        ("raise", 3, 3),
        ("raise backward", 2, 1),  # stage 1 has no gradient to come back for its input
        ("raise backward", 2, 3),
        ("raise backward", 3, 3),
    ],
)
def test_an_error_is_told_with_its_traceback_and_its_own_rank(
    what: str, stage: int, workers: int, tmp_path: Path
) -> None:
    message = fails(bombs(tmp_path, stage, what), workers)
    rank = 0 if workers == 1 else stage - 1
    where = "backward" if "backward" in what else "forward"
    first, *rest = message.splitlines()
    assert first == (
        f"worker {rank} of {workers} raised an error while in the {where} of stage {stage}, "
        "micro-batch 4"
    )
    assert rest[0] == "Traceback (most recent call last):"
    assert rest[-1] == f"ArithmeticError: boom on stage {stage}"
    assert any(Path(__file__).name in line for line in rest)


def test_the_cause_is_found_while_the_listener_is_busy(tmp_path: Path) -> None:
    """Scoring takes long; by its end the cause and the neighbours' complaints lie in the pipes."""
    job = bombs(tmp_path, 3, "raise", task=SlowToScore, eval_every=1)
    message = fails(job, 3)
    assert message.startswith("worker 2 of 3 raised an error while in the forward of stage 3")
    assert message.rstrip().endswith("boom on stage 3")


class SlowToScore(Regression):
    def evaluate(self, forward: Callable[[Boundary], Boundary]) -> float:
        time.sleep(2.0)
        return super().evaluate(forward)


class FailsToStart(Regression):
    """Cannot be made on worker `rank`."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        if in_worker() and torch.distributed.get_rank() == rank:
            time.sleep(0.5)
            raise ArithmeticError(f"no data on {rank}")


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_an_error_before_training(rank: int, tmp_path: Path) -> None:
    message = fails(bombs(tmp_path, 1, "", task=partial(FailsToStart, rank)), 3)
    assert message.startswith(f"worker {rank} of 3 raised an error while starting")
    assert message.rstrip().endswith(f"ArithmeticError: no data on {rank}")


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("code", [3, 0])
def test_a_worker_that_just_leaves(code: int, workers: int, tmp_path: Path) -> None:
    message = fails(bombs(tmp_path, 2, f"exit {code}"), workers)
    rank = {1: 0, 3: 1}[workers]
    assert message.startswith(f"worker {rank} of {workers} ended with exit code {code}")
    assert "in the forward of stage 2, micro-batch 4" in message


class Interrupted(Observer):
    """Raises what it is given at step 3."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_loss(self, step: int, loss: float) -> None:
        if step == 3:
            raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("pruned")], ids=repr)
def test_an_interrupt_in_the_listener_leaves_nobody(error: BaseException, tmp_path: Path) -> None:
    job = bombs(tmp_path, 2, "")
    started = time.monotonic()
    with pytest.raises(type(error)):
        run_pipeline(job, 3, observer=Interrupted(error))
    assert time.monotonic() - started < SOON_S
    assert children_of_forkserver() == set()


class FailsToScore(Regression):
    def evaluate(self, forward: Callable[[Boundary], Boundary]) -> float:
        raise ArithmeticError("no score")


def test_an_error_in_scoring_is_itself(tmp_path: Path) -> None:
    job = bombs(tmp_path, 2, "", task=FailsToScore, eval_every=5)
    with pytest.raises(ArithmeticError, match="no score"):
        run_pipeline(job, 3)
    assert children_of_forkserver() == set()


ORPHANS = """
import sys
sys.path.insert(0, {here!r})
from pathlib import Path
from reproduce.engine import run_pipeline
from test_failures import bombs
if __name__ == "__main__":
    run_pipeline(bombs(Path({folder!r}), 1, "", steps=100000), 3)
"""


def test_workers_go_with_the_process_that_started_them(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(ORPHANS.format(here=str(Path(__file__).parent), folder=str(tmp_path)))
    parent = subprocess.Popen([sys.executable, script])
    try:
        while not all((tmp_path / f"pid{i}").exists() for i in (1, 2, 3)):
            assert parent.poll() is None
            time.sleep(0.1)
        time.sleep(0.5)
    finally:
        parent.kill()
        parent.wait()
    pids = [int((tmp_path / f"pid{i}").read_text()) for i in (1, 2, 3)]
    deadline = time.monotonic() + SOON_S
    while time.monotonic() < deadline and any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.1)
    left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


@pytest.mark.parametrize("workers", [0, 4])
def test_workers_that_cannot_be(workers: int) -> None:
    job = make_job(dense(3), Regression, "async", stages=3)
    with pytest.raises(ValueError, match=rf"{workers} workers for 3 stages: choose 1 to 3"):
        run_pipeline(job, workers)


@pytest.mark.parametrize("engine", [run_reference, partial(run_pipeline, workers=1)])
def test_more_stages_than_units(engine: Callable[[Job], object]) -> None:
    with pytest.raises(ValueError, match="3 units cannot make 4 stages"):
        engine(make_job(dense(3), Regression, "async", stages=4))
