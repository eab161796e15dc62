"""Lock-free workers: one is plain training to the last bit, several lose nothing that they count.

What several processes do cannot be repeated, so the rules are tested on workers that are driven by
hand in one process, one in the middle of another's mini-batch, and real runs by what must hold of
all of them: every mini-batch once, delays that add up, ends that leave nobody.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from core_cases import (
    SMALL_RESNET,
    SMALL_TRANSFORMER,
    Affine,
    Images,
    Regression,
    Sentences,
    adam,
    assert_same,
    assert_trained,
    dense,
    exponential,
    make_job,
    network,
    plain_sgd,
    ramp_then_cosine,
    sgd,
)
from test_divergence import Exploding, Heard
from test_failures import SOON_S, Bomb, children_of_forkserver, in_worker
from torch import Tensor

from data.task import Microbatch
from models.unit import Boundary
from reproduce.discrepancy import Discrepancy
from reproduce.engine import run_lockfree, run_pipeline
from reproduce.engine.lockfree import mean_delay, utilization
from reproduce.engine.lockfree_worker import LockFreeWorker
from reproduce.engine.report import SLOTS, Done, Report
from reproduce.engine.shared import Shared, initial_state
from reproduce.escapes import EscapesInterception
from reproduce.hogwild import RandomDelays
from reproduce.job import Job, WorkerFailed
from reproduce.memory import modelled_memory
from reproduce.methods import METHODS, Method
from reproduce.phases import stage_delays
from reproduce.reference import run_reference

ROW, T1 = "hogwild-lockfree", "hogwild-lockfree+t1"

# One worker.

CASES = {
    "momentum": (dense(5), Regression, sgd, None),
    "batch norm": (SMALL_RESNET, Images, sgd, exponential),
    "dropout and adam": (SMALL_TRANSFORMER, Sentences, adam, ramp_then_cosine),
}


@pytest.mark.parametrize("name", CASES)
def test_one_worker_is_plain_training(name: str) -> None:
    net, task, optimizer, scheduler = CASES[name]
    settings = {"optimizer": optimizer, "scheduler": scheduler, "microbatches": 3, "eval_every": 5}
    expected = run_reference(make_job(net, task, "gpipe", **settings))
    heard = Heard()
    found = run_lockfree(make_job(net, task, T1, **settings), 1, heard)
    assert_same(found, expected)
    assert found.drawn_delays == {0: expected.steps}
    assert heard.losses == list(enumerate(found.losses))
    assert heard.metrics == found.metrics


def test_one_worker_that_diverges_is_plain_training() -> None:
    settings = {"microbatches": 2, "steps": 9, "eval_every": 1}
    task = partial(Exploding, 11, 1e6)
    expected = run_reference(make_job(dense(3), task, "gpipe", stages=3, **settings))
    assert expected.diverged_at == 5
    assert_same(run_lockfree(make_job(dense(3), task, ROW, stages=3, **settings), 1), expected)


class OnePlus(Affine):
    """Makes a copy of a weight, which no other method but gpipe may."""

    def forward(self, x: Tensor, *rest: Tensor) -> Boundary:
        (y,) = super().forward(x, *rest)
        return (y * (1 + self.linear.bias),)


def test_a_copy_of_a_weight_is_harmless() -> None:
    """Both passes compute with the worker's own weights, whatever autograd keeps of them."""
    net = network(*[partial(OnePlus, 6, 6)] * 2)
    with pytest.raises(EscapesInterception):
        run_reference(make_job(net, Regression, "hogwild", stages=2))
    expected = run_reference(make_job(net, Regression, "gpipe", stages=2))
    assert_same(run_lockfree(make_job(net, Regression, ROW, stages=2), 1), expected)


# Workers driven by hand.


class Silent:
    """Stands for the pipe to the launcher."""

    def send(self, message: Any) -> None:
        pass


def workers_of(job: Job) -> list[LockFreeWorker]:
    """The workers of a job, in this process, each with its own view of the shared memory."""
    memory = Shared(job).memory
    board = [0] * SLOTS * job.lockfree_workers
    return [
        LockFreeWorker(job, rank, Shared(job, memory), Report(rank, Silent(), board))  # type: ignore[arg-type]
        for rank in range(job.lockfree_workers)
    ]


class Interrupting(Regression):
    """Calls back when the data of a micro-batch is asked for."""

    calls: ClassVar[dict[int, Callable[[], None]]] = {}

    def microbatch(self, m: int) -> Microbatch:
        self.calls.pop(m, lambda: None)()
        return super().microbatch(m)


def gradient(job: Job, weights: list[Tensor], t: int) -> list[Tensor]:
    """Of mini-batch t at these weights, by autograd alone."""
    block = job.network.block(range(len(job.network)), job.seed)
    with torch.no_grad():
        for mine, value in zip(block.parameters(), weights, strict=True):
            mine.copy_(value)
    task, n = Regression(), job.microbatches
    loss = torch.zeros(())
    for m in range(t * n, (t + 1) * n):
        inputs, target = task.microbatch(m)
        outputs = block(inputs[0].float(), seed=job.seed, microbatch=m)
        loss = loss + task.loss(outputs, target) / n
    return list(torch.autograd.grad(loss, list(block.parameters())))


@pytest.mark.parametrize(("method", "factor"), [(ROW, 1.0), (T1, 0.5)])
def test_an_update_by_another_between_read_and_write(method: str, factor: float) -> None:
    """Worker 0 has read the weights when worker 1 does a whole mini-batch; then it computes on
    what it read, and adds its update to what worker 1 left. With three workers tau is 2, and T1
    halves the first updates: k / K is 0 and then 1/1000."""
    job = make_job(
        dense(2), Interrupting, method, stages=2, optimizer=plain_sgd, lockfree_workers=3,
        annealing_steps=1_000,
    )  # fmt: skip
    first, second, _ = workers_of(job)
    start = [w.detach().clone() for w in first.weights]
    Interrupting.calls = {0: lambda: second.mini_batch(1)}
    first.mini_batch(0)
    assert (first.drawn_delays, second.drawn_delays) == ({1: 1}, {0: 1})
    assert first.shared.updates() == second.shared.updates() == 2
    later = factor ** (1 - 1 / 1000)
    lr = 0.02
    shared = [w for stage in first.shared.stages for w in stage.weights]
    pairs = zip(start, gradient(job, start, 1), gradient(job, start, 0), shared, strict=True)
    for before, by_second, by_first, now in pairs:
        expected = before - lr * factor * by_second - lr * later * by_first
        torch.testing.assert_close(now.detach(), expected)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_momentum_and_buffers_are_shared_and_schedules_follow_all_updates() -> None:
    job = make_job(
        SMALL_RESNET, Images, ROW, scheduler=exponential, lockfree_workers=2, microbatches=2
    )
    first, second = workers_of(job)
    for t in (0, 2, 4, 6, 8):
        first.mini_batch(t)
    second.mini_batch(1)
    rate = second.updates[0].optimizer.param_groups[0]["lr"]
    assert rate == pytest.approx(0.02 * 0.9**6)  # as it is for the seventh update
    for mine, other in zip(first.shared.stages, second.shared.stages, strict=True):
        for a, b in zip(mine.state, other.state, strict=True):
            assert a["momentum_buffer"].any()
            assert torch.equal(a["momentum_buffer"], b["momentum_buffer"])
    buffers = dict(pair for block in second.blocks for pair in block.named_buffers())
    counted = [int(b) for name, b in buffers.items() if name.endswith("num_batches_tracked")]
    assert counted
    assert set(counted) == {6 * job.microbatches}  # by both


class Turns(Regression):
    """Three workers in three threads, one at a time: between reading and computing (where the data
    are asked for) a worker lets the next one go on and waits for its turn."""

    turns: ClassVar[list[threading.Semaphore]] = []

    @classmethod
    def next(cls, rank: int) -> None:
        cls.turns[(rank + 1) % len(cls.turns)].release()

    def microbatch(self, m: int) -> Microbatch:
        rank = m % len(self.turns)  # a mini-batch is one micro-batch
        self.next(rank)
        assert self.turns[rank].acquire(timeout=30)
        return super().microbatch(m)


def test_the_delay_of_equal_workers_is_k_minus_1() -> None:
    """Between a worker's read and its write every other one writes once, except before the first
    three updates, which had 0, 1 and 2 before them: those do not count for tau."""
    job = make_job(
        dense(2), Turns, ROW, stages=2, microbatches=1, steps=12, lockfree_workers=3
    )  # fmt: skip
    Turns.turns = [threading.Semaphore(0) for _ in range(3)]
    workers = workers_of(job)

    def drive(worker: LockFreeWorker) -> None:
        assert Turns.turns[worker.rank].acquire(timeout=30)
        worker.run()
        Turns.next(worker.rank)

    threads = [threading.Thread(target=drive, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    Turns.turns[0].release()
    for thread in threads:
        thread.join()
    assert [worker.drawn_delays for worker in workers] == [{0: 1, 2: 3}, {1: 1, 2: 3}, {2: 4}]
    assert mean_delay([done(worker) for worker in workers]) == 2
    assert stage_delays(job, 1) == (2, 2)


def done(worker: LockFreeWorker) -> Done:
    """What a worker tells at its end, as far as delays and times go."""
    return Done(
        rank=worker.rank, stages=[], delays=[], memory=worker.memory(),
        utilization=worker.utilization(), loop_s=worker.wall_s,
        drawn_delays=worker.drawn_delays, filling_delays=worker.filling_delays,
    )  # fmt: skip


def test_fewer_updates_than_workers_tell_no_delay() -> None:
    job = make_job(dense(2), Regression, ROW, stages=2, steps=2, lockfree_workers=3)
    workers = workers_of(job)
    for worker in workers:
        worker.run()
    assert mean_delay([done(worker) for worker in workers]) is None


def test_waiting_for_the_last_worker_is_idle_time() -> None:
    """Two workers that were busy for all of 10 s and for 3 of 4 s, of 10 s that the run took."""
    first, second = workers_of(make_job(dense(2), Regression, ROW, stages=2, lockfree_workers=2))
    ends = [done(first)._replace(utilization=1.0, loop_s=10.0)]
    ends.append(done(second)._replace(utilization=0.75, loop_s=4.0))
    assert utilization(ends) == pytest.approx((10 + 3) / 20)


class Reassigning(Affine):
    """Counts its training passes, and keeps their mean input, in buffers that it makes anew."""

    def __init__(self) -> None:
        super().__init__(6, 6)
        self.register_buffer("passes", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor, *rest: Tensor) -> Boundary:
        (y,) = super().forward(x, *rest)
        if self.training and not x.is_meta:
            self.passes = self.passes + 1
            self.scale = 0.9 * self.scale + 0.1 * y.detach().abs().mean()
        return (y / self.scale,)  # the graph keeps the scale of this pass


def test_a_buffer_that_a_unit_makes_anew_stays_shared() -> None:
    """Its value would otherwise stay with one worker, and evaluation see the initial one."""
    net = network(*[Reassigning] * 2)
    job = make_job(net, Regression, ROW, stages=2, steps=6, lockfree_workers=2)
    first, second = workers_of(job)
    first.run()
    second.run()
    for stage in first.shared.stages:
        assert stage.buffers[0] == job.steps * job.microbatches
        assert stage.buffers[1] != 1.0
    expected = run_reference(make_job(net, Regression, "gpipe", stages=2, steps=6))
    assert_same(run_lockfree(job, 1), expected)


# Several processes.


def _sleep(_: Tensor) -> None:
    time.sleep(0.01)


class Slow(Affine):
    """A linear layer whose passes take so long that nothing else of a mini-batch counts."""

    def forward(self, x: Tensor, *rest: Tensor) -> Boundary:
        (y,) = super().forward(x, *rest)
        if y.requires_grad and not x.is_meta:
            time.sleep(0.01)
            y.register_hook(_sleep)
        return (y,)


def test_what_must_hold_of_any_delays() -> None:
    """A worker's mini-batches follow one another, so each counts an update by another once at most:
    K - 1 times all updates in all. How near the mean comes is the machine's business."""
    job = make_job(
        network(*[partial(Slow, 6, 6)] * 2), Regression, ROW, stages=2, microbatches=1,
        steps=60, eval_every=7,
    )  # fmt: skip
    outcome = run_lockfree(job, 3)
    assert_trained(outcome, job)
    assert sum(outcome.drawn_delays.values()) == job.steps
    assert sum(d * c for d, c in outcome.drawn_delays.items()) <= 2 * job.steps
    first, second = outcome.delays
    assert (first.stage, second.stage) == (1, 2)
    mean = first.tau_fwd
    assert mean is not None
    assert mean == first.tau_bkwd == second.tau_fwd == second.tau_bkwd
    # Left out are updates that began their write with fewer than 3 done: with those two, 5 at most.
    assert 0 <= mean <= Fraction(2 * job.steps, job.steps - 5)
    assert [steps for steps, _ in outcome.metrics] == [7, 14, 21, 28, 35, 42, 49, 56, 60]
    assert outcome.utilization is not None
    assert 0.0 < outcome.utilization <= 1.0
    assert outcome.drains == 0
    assert children_of_forkserver() == set()


def test_three_workers_train() -> None:
    """Every loss once and in order, in the outcome and at the observer."""
    heard = Heard()
    optimizer = partial(torch.optim.Adam, lr=1e-2)
    job = make_job(SMALL_RESNET, partial(Images, batch=8), T1, steps=90, optimizer=optimizer)
    outcome = run_lockfree(job, 3, heard)
    assert_trained(outcome, job)
    assert heard.losses == list(enumerate(outcome.losses))
    assert sum(outcome.losses[-10:]) < 0.8 * sum(outcome.losses[:10])


def test_more_workers_than_mini_batches() -> None:
    job = make_job(dense(3), Regression, ROW, stages=3, steps=2)
    outcome = run_lockfree(job, 4)
    assert (outcome.steps, sum(outcome.drawn_delays.values())) == (2, 2)
    measured = replace(outcome.memory, activations_peak=0)
    assert measured == modelled_memory(replace(job, lockfree_workers=4))


@pytest.mark.parametrize("optimizer", [sgd, plain_sgd, adam])
def test_memory_is_as_modelled(optimizer: Any) -> None:
    """Weights and optimizer state once; a copy of the weights and gradients in every worker."""
    job = make_job(dense(4), Regression, ROW, steps=9, optimizer=optimizer, lockfree_workers=3)
    memory = run_lockfree(job, 3).memory
    assert memory is not None
    assert memory.stash == memory.gradients == 3 * memory.weights
    assert memory.activations_peak > 0
    assert replace(memory, activations_peak=0) == modelled_memory(job)


# Ends before the last step.


@pytest.mark.parametrize("factor", [1e6, math.nan])
def test_a_divergence_ends_all(factor: float) -> None:
    """Mini-batch 7 of 30000 has the huge loss; the others may be a few on by then, or behind."""
    task = partial(Exploding, 15, factor)
    job = make_job(dense(3), task, ROW, stages=3, steps=30_000)
    outcome = run_lockfree(job, 3)
    assert outcome.status == "diverged"
    assert outcome.diverged_at == outcome.steps - 1 <= 7
    assert not outcome.losses[-1] <= job.divergence_loss
    assert all(loss <= job.divergence_loss for loss in outcome.losses[:-1])
    assert outcome.metrics == []
    assert 1 <= sum(outcome.drawn_delays.values()) < job.steps / 2
    assert children_of_forkserver() == set()


class Failing(Bomb):
    """Goes off in every worker, in its fifth pass there."""

    def forward(self, x: Tensor, *rest: Tensor) -> Boundary:
        if in_worker() and not x.is_meta:
            self.passes += 1
            if self.passes == 5:
                self.go_off(x)
        return Affine.forward(self, x, *rest)


@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("raise", r"raised an error while in the forward of stage 2, micro-batch \d+\n"),
        ("raise backward", r"raised an error while in the backward of micro-batch \d+\n"),
        ("signal 9", r"was ended by SIGKILL while in the forward of stage 2, micro-batch \d+$"),
        ("exit 0", r"ended with exit code 0 while in the forward of stage 2, micro-batch \d+$"),
    ],
)
def test_a_worker_that_fails_is_named_and_nobody_is_left(
    what: str, how: str, tmp_path: Path
) -> None:
    units = [partial(Affine, 6, 6), partial(Failing, tmp_path, 2, what), partial(Affine, 6, 6)]
    job = make_job(network(*units), Regression, ROW, stages=3, steps=300)
    with pytest.raises(WorkerFailed, match=rf"^worker [012] of 3 {how}"):
        run_lockfree(job, 3)
    assert children_of_forkserver() == set()


class Leaving(Regression):
    """One worker ends its process without a word, as if it had done its work: the first that asks
    for micro-batch `at`, or (None) for the data at all."""

    def __init__(self, folder: Path, at: int | None) -> None:
        super().__init__()
        self.folder, self.at = folder, at
        if at is None and in_worker():
            self.leave()

    def leave(self) -> None:
        with contextlib.suppress(FileExistsError):
            (self.folder / "left").touch(exist_ok=False)
            os._exit(0)

    def microbatch(self, m: int) -> Microbatch:
        if m == self.at and in_worker():
            self.leave()
        return super().microbatch(m)


@pytest.mark.parametrize(
    ("at", "doing"), [(None, "starting"), (40, r"in the backward of micro-batch \d+")]
)
def test_a_worker_that_leaves_is_missed_at_once(at: int | None, doing: str, tmp_path: Path) -> None:
    """Not when the others have done 300000 mini-batches, and not when the barrier breaks that they
    wait at for minutes."""
    job = make_job(dense(3), partial(Leaving, tmp_path, at), ROW, stages=3, steps=300_000)
    started = time.monotonic()
    with pytest.raises(WorkerFailed, match=rf"^worker [012] of 3 ended with exit code 0 .*{doing}"):
        run_lockfree(job, 3)
    assert time.monotonic() - started < SOON_S
    assert children_of_forkserver() == set()


# What is refused.


@pytest.mark.parametrize(
    "pieces",
    [
        {"schedule": "pipeline"},
        {"schedule": "gpipe", "stash": True},
        {"schedule": "gpipe", "warmup": True},
        {"schedule": "gpipe", "correction": Discrepancy},
        {"schedule": "gpipe", "delays": RandomDelays},
    ],
)
def test_pieces_that_do_not_go_with_it(pieces: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="method 'mine'"):
        Method("mine", "my own", lockfree=True, **pieces)


@pytest.mark.parametrize("name", ["NAdam", "Rprop", "ASGD", "Adamax"])
def test_an_optimizer_whose_state_does_not_start_from_zeros(name: str) -> None:
    job = make_job(dense(4), Regression, ROW, optimizer=partial(getattr(torch.optim, name), lr=0.1))
    with pytest.raises(ValueError, match=f"{name} keeps"):
        run_lockfree(job, 2)


def test_dampening() -> None:
    """SGD spares the first gradient of a momentum, which a momentum that starts from zeros does
    not: one worker would already train otherwise than gpipe."""
    optimizer = partial(torch.optim.SGD, lr=0.02, momentum=0.9, dampening=0.5)
    job = make_job(dense(4), Regression, ROW, optimizer=optimizer)
    with pytest.raises(ValueError, match=r"SGD with dampening.*choose dampening = 0"):
        run_lockfree(job, 1)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta"])
def test_state_that_can_be_shared(name: str) -> None:
    make = partial(getattr(torch.optim, name), lr=0.1)
    (state,) = initial_state(make, [torch.ones(3)])
    assert not any(value.any() for value in state.values())
    assert bool(state) == (name != "SGD")


@pytest.mark.parametrize(
    ("run", "method", "settings", "words"),
    [
        (run_reference, ROW, {}, "no reference"),
        (partial(run_pipeline, workers=2), ROW, {}, "run_lockfree"),
        (partial(run_lockfree, workers=2), "hogwild", {}, "not lock-free"),
        (partial(run_lockfree, workers=0), ROW, {}, "at least 1"),
        (partial(run_lockfree, workers=2), ROW, {"device": "meta"}, "CPU"),
        (partial(run_lockfree, workers=2), ROW, {"trace": True}, "timeline"),
        (partial(run_lockfree, workers=2), ROW, {"segment": 2}, "recompute"),
        (run_reference, "t1", {"trace": True}, "timeline"),
    ],
)
def test_what_an_engine_has_not(
    run: Callable[[Job], object], method: str, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        run(make_job(dense(4), Regression, method, **settings))


def test_the_rows_are_what_they_say() -> None:
    rows = {name: row for name, row in METHODS.items() if row.lockfree}
    assert rows.keys() == {ROW, T1}
    assert not any(row.synchronous for row in rows.values())
    assert rows[ROW].learning_rate is None
    assert rows[T1].learning_rate is not None
