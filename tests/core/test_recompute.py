"""PipeMare Recompute as both engines do it: equal to the last bit, and to a third implementation.

Where nothing stale is read a second time (gpipe, stashed weights) training must come out as without
recompute, running statistics and all. Where something is, `by_hand` says what, in plain Python.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from core_cases import (
    SMALL_RESNET,
    SMALL_TRANSFORMER,
    Images,
    Regression,
    Sentences,
    adam,
    assert_same,
    assert_trained,
    dense,
    make_job,
    network,
    plain_sgd,
    sgd,
)
from test_by_hand import Factor, Samples, sample, start
from test_corners import FloatMask, Gate, Integers, UseIntegers
from test_leaks import run as run_here
from test_rows import Offset, OneOrTwoUpdates
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from models.unit import Boundary, Unit
from reproduce.discrepancy import Discrepancy
from reproduce.engine import run_pipeline
from reproduce.engine.flights import Flights, Keep
from reproduce.engine.stage import PipelineStage
from reproduce.job import Job
from reproduce.methods import METHODS, Method
from reproduce.phases import phases
from reproduce.reference import run_reference

LATE_S = 0.02
METHOD_NAMES = ["gpipe", "pipedream", "t1", "t1+t2", "t1+t2+t3", "hogwild"]
EXACT = ["gpipe", "pipedream", "hogwild"]
"""Methods whose recomputation reads the weights of the forward pass"""
pictures = partial(Images, batch=8)


def resnet_job(method: str | Method, **settings: Any) -> Job:
    return make_job(SMALL_RESNET, pictures, method, **({"eval_every": 5} | settings))


def transformer_job(method: str | Method, **settings: Any) -> Job:
    defaults = {"eval_every": 5, "optimizer": adam}
    return make_job(SMALL_TRANSFORMER, Sentences, method, **(defaults | settings))


JOBS = {"resnet": resnet_job, "transformer": transformer_job}


# Both engines.


@pytest.mark.parametrize("make", JOBS.values(), ids=JOBS)
@pytest.mark.parametrize("method", METHOD_NAMES)
def test_engines_agree_on_any_number_of_workers(method: str, make: Callable[..., Job]) -> None:
    """P = 7, S = 3: segments 1-3 and 4-6 cross the borders of 2 and of 3 workers."""
    job = make(method, stages=7, segment=3, microbatches=2)
    expected = run_reference(job)
    assert_trained(expected, job)
    for workers in (2, 3):
        assert_same(run_pipeline(job, workers, max_send_delay=LATE_S), expected)


@pytest.mark.parametrize(("stages", "segment"), [(6, 1), (6, 4), (6, 5), (6, 6), (1, 1)])
@pytest.mark.parametrize("method", ["gpipe", "t1+t2+t3"])
def test_any_segment(method: str, stages: int, segment: int) -> None:
    job = make_job(dense(6), Regression, method, stages=stages, segment=segment, eval_every=3)
    expected = run_reference(job)
    assert_trained(expected, job)
    assert_same(run_pipeline(job, min(stages, 3)), expected)


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_a_worker_for_every_stage(method: str) -> None:
    """P = 5, S = 3: every pass of a segment but its first gets its input by a message, and under
    gpipe every stage recomputes from its own."""
    job = make_job(dense(5), Regression, method, stages=5, segment=3, eval_every=5)
    expected = run_reference(job)
    assert_trained(expected, job)
    assert_same(run_pipeline(job, 5, max_send_delay=LATE_S), expected)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("method", ["t1+t2", "t1+t2+t3", "pipedream"])
def test_a_run_shorter_than_the_pipeline_is_deep(method: str, steps: int) -> None:
    job = make_job(
        dense(8), Regression, method, stages=8, segment=3, microbatches=1, steps=steps, sync_steps=1
    )
    assert_same(run_pipeline(job, 3), run_reference(job))


ROWS: dict[str, dict[str, Any]] = {
    "stash, T2": {"schedule": "pipeline", "stash": True, "correction": Discrepancy},
    "stash, own correction": {"schedule": "pipeline", "stash": True, "correction": Offset},
    "T2 without T1": {"schedule": "pipeline", "correction": Discrepancy},
    "gpipe, own correction": {"schedule": "gpipe", "correction": Offset},
    "own delays, backward on live weights": {"schedule": "gpipe", "delays": OneOrTwoUpdates},
    "own delays, T2": {
        "schedule": "gpipe", "delays": OneOrTwoUpdates, "correction": Discrepancy,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_methods_of_ones_own(name: str) -> None:
    row = Method("mine", "my own", **ROWS[name])
    job = make_job(dense(5), Regression, row, stages=5, segment=2, optimizer=plain_sgd)
    expected = run_reference(job)
    assert_trained(expected, job)
    assert_same(run_pipeline(job, 2), expected)


@pytest.mark.parametrize("method", ["gpipe", "t1+t2"])
@pytest.mark.parametrize("units", [(FloatMask, Gate), (Integers, UseIntegers)])
def test_members_without_a_gradient_cross_a_segment(method: str, units: tuple[Any, Any]) -> None:
    """A float mask or integers, into a segment and out of one."""
    (chain,) = dense(2, 6).blueprints[:1]
    net = network(chain, *units, chain, *units, chain)
    for segment in (2, 3):
        job = make_job(net, Regression, method, stages=7, segment=segment, microbatches=1)
        expected = run_reference(job)
        assert expected.status == "finished"
        assert_same(run_pipeline(job, 3), expected)


def test_a_divergence_ends_both_alike() -> None:
    job = resnet_job(
        "async", stages=7, segment=2, steps=30, divergence_loss=20.0,
        optimizer=partial(torch.optim.SGD, lr=30.0),
    )  # fmt: skip
    expected = run_reference(job)
    assert expected.status == "diverged"
    assert 1 < expected.steps < 30
    assert_same(run_pipeline(job, 3, max_send_delay=LATE_S), expected)


# What recomputation changes, and what it does not.


@pytest.mark.parametrize("make", JOBS.values(), ids=JOBS)
@pytest.mark.parametrize("method", EXACT)
def test_on_its_forward_weights_nothing_changes(method: str, make: Callable[..., Job]) -> None:
    """Weights, losses, and metrics on the running statistics; dropout falls as it fell."""
    job = make(method, stages=6, segment=2, microbatches=3)
    kept = run_reference(replace(job, segment=0))
    for outcome in (run_reference(job), run_pipeline(job, 2)):
        assert_same(outcome, kept)


@pytest.mark.parametrize("method", ["async", "t1", "t1+t2", "t1+t2+t3"])
def test_on_newer_weights_training_is_another(method: str) -> None:
    job = make_job(dense(6), Regression, method, stages=6, microbatches=1)
    digests = {run_reference(replace(job, segment=segment)).weights_sha256 for segment in (0, 2, 3)}
    assert len(digests) == 3
    assert run_reference(replace(job, segment=6)).weights_sha256 in digests, "one segment: none"
    delays = [run_reference(replace(job, segment=segment)).delays for segment in (0, 3)]
    assert delays[0] == delays[1], "tau_fwd and tau_bkwd are as they were"


@pytest.mark.parametrize("method", ["gpipe", "t1+t2", "t1+t2+t3"])
def test_running_statistics_are_updated_by_the_forward_pass_alone(method: str) -> None:
    job = resnet_job(method, stages=6, segment=2, microbatches=2, eval_every=0)
    _, worker = run_here(job)
    _, plain = run_here(replace(job, segment=0))
    seen = 0
    for stage, other in zip(worker.stages.values(), plain.stages.values(), strict=True):
        buffers = dict(other.block.named_buffers())
        for name, buffer in stage.block.named_buffers():
            if name.endswith("num_batches_tracked"):
                assert buffer == job.steps * job.microbatches
                seen += 1
            elif method == "gpipe":
                assert torch.equal(buffer, buffers[name])
    assert seen > 3


def test_dropout_falls_as_it_fell() -> None:
    """A stage in the middle of the Transformer, whose dropout is 0.2."""
    job = transformer_job("async", stages=8, segment=3)
    block = job.network.block(range(1, 4), job.seed)
    stage = PipelineStage(job, 4, block, leaving=[True, False, False, False])
    inputs = job.task().microbatch(0).inputs
    embedded = job.network.block(range(1), job.seed)(*inputs, seed=0, microbatch=0)
    entering = tuple(t.detach() for t in embedded)
    first, other = (stage.block(*entering, seed=job.seed, microbatch=m) for m in (4, 5))
    assert not torch.equal(first[0], other[0]), "there is dropout to repeat"
    stage._leaving = [t.is_floating_point() for t in first]
    forward = stage.forward(4, entering, keep=Keep.INPUT)
    torch.manual_seed(123)
    again = stage.recompute(4, None, None, exact=False)
    assert all(torch.equal(a, b) for a, b in zip(forward, again, strict=True))
    assert torch.equal(forward[0], first[0])


# Which weights.


class Scaled(Unit):
    """``(x,) -> (w x,)`` with w = 2."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: Tensor) -> Boundary:
        return (self.w * x,)


@pytest.mark.parametrize(
    ("method", "recomputed", "upstream"), [("async", 15.0, 4.0), ("t1+t2", 7.5, 2.75)]
)
def test_weights_by_hand(method: str, recomputed: float, upstream: float) -> None:
    """Stage 3 of P = 5, S = 2, N = 1: e = 4, tau_fwd = 5, tau_recomp = 2. x = 5, w is 2 at F, 3 at
    R and 4 at B; delta is 1/2 at R and 1/4 at B.

    T2 recomputes with 3 - (5 - 2)/2 = 3/2 and goes back with 4 - 5/4 = 11/4; dw is x.
    """
    job = make_job(network(*[Scaled] * 5), Samples, method, stages=5, segment=2, microbatches=1)
    stage = PipelineStage(job, 3, job.network.block(range(2, 3), 0), leaving=[True])
    (weight,) = stage.versions.live
    correction = stage._update.correction

    def now(w: float, delta: float) -> None:
        weight.detach().fill_(w)
        if isinstance(correction, Discrepancy):
            correction.delta[0].fill_(delta)

    x = torch.tensor([5.0], requires_grad=True)
    (y,) = stage.forward(0, (x,), keep=Keep.INPUT)
    assert y.item() == 10.0
    now(3.0, 0.5)
    (y,) = stage.recompute(0, None, None, exact=False)
    assert y.item() == recomputed
    now(4.0, 0.25)
    (gradient,) = stage.backward(0, (torch.ones(1),), count_delay=True)
    assert gradient.item() == upstream
    assert stage._gradients[0] is not None
    assert stage._gradients[0].item() == 5.0


LR, D, STEPS = 0.05, 0.3, 14


def by_hand(method: str, stages: int, size: int, n: int) -> list[float]:
    """The final weights of y = w_P ... w_1 x with loss (y - target)^2 / 2, walked tick by tick.

    In B, dx = u g with u = w or w - tau_fwd delta, and dw = x g with the x of the recomputation.
    """
    everyone = range(1, stages + 1)
    w = {i: start(i) for i in everyone}
    delta, sums = dict.fromkeys(everyone, 0.0), dict.fromkeys(everyone, 0.0)
    tau = {i: (2 * (stages - i) + 1) / n for i in everyone}
    end = {i: min(-(-i // size) * size, stages) for i in everyone}
    x_of: dict[tuple[int, int], float] = {}
    down: dict[tuple[str, int, int], float] = {}
    up: dict[tuple[int, int], float] = {}
    for tick in range(STEPS * n + 2 * stages):
        for i in everyone:
            recomputes = end[i] < stages
            m = tick - i + 1
            if 0 <= m < STEPS * n:
                x, target = sample(m)
                x = x if i == 1 else down["F", i, m]
                if not recomputes or (i - 1) % size == 0:
                    x_of[i, m] = x
                down["F", i + 1, m] = w[i] * x
                if i == stages:
                    up[i, m] = (w[i] * x - target) / n
            m = tick - 2 * stages + 2 * end[i] - i
            if recomputes and 0 <= m < STEPS * n:
                if (i - 1) % size:
                    x_of[i, m] = down["R", i, m]
                gap = tau[i] - 2 * (end[i] - i) / n
                u = w[i] - gap * delta[i] if "t2" in method else w[i]
                down["R", i + 1, m] = u * x_of[i, m]
            m = tick - 2 * stages + i
            if 0 <= m < STEPS * n:
                g = up.pop((i, m))
                sums[i] += x_of.pop((i, m)) * g
                u = w[i] - tau[i] * delta[i] if "t2" in method else w[i]
                up[i - 1, m] = u * g
                if (m + 1) % n == 0:
                    before, w[i] = w[i], w[i] - LR * sums[i]
                    gamma = D ** (1 / tau[i])
                    delta[i] = gamma * delta[i] + (1 - gamma) * (w[i] - before)
                    sums[i] = 0.0
    return [w[i] for i in everyone]


@pytest.mark.parametrize(("stages", "size", "n"), [(4, 2, 1), (5, 2, 2), (7, 3, 2), (6, 4, 1)])
@pytest.mark.parametrize("method", ["async", "t1+t2"])
def test_engines_do_what_the_definitions_say(method: str, stages: int, size: int, n: int) -> None:
    job = make_job(
        network(*[partial(Factor, i) for i in range(1, stages + 1)]), Samples, method,
        stages=stages, segment=size, microbatches=n, steps=STEPS, annealing_steps=0, decay=D,
        optimizer=partial(torch.optim.SGD, lr=LR), dtype=torch.float64,
        divergence_loss=float("inf"),
    )  # fmt: skip
    expected = by_hand(method, stages, size, n)
    outcomes = [run_reference(job), *([run_pipeline(job, 2)] if n == 2 else [])]
    for outcome in outcomes:
        assert [v.item() for v in outcome.weights] == pytest.approx(expected, rel=1e-10)
    other = by_hand({"async": "t1+t2", "t1+t2": "async"}[method], stages, size, n)
    assert expected != pytest.approx(other, rel=1e-6)


# Memory.


@pytest.mark.parametrize("method", ["async", "t1+t2", "pipedream", "gpipe"])
@pytest.mark.parametrize(("stages", "size"), [(7, 0), (7, 3), (9, 3), (8, 1), (6, 6)])
def test_graphs_and_inputs_in_flight_are_those_of_the_formula(
    method: str, stages: int, size: int
) -> None:
    job = make_job(
        dense(stages), Regression, method, stages=stages, segment=size, microbatches=3, steps=12
    )
    _, worker = run_here(job)
    (phase,) = phases(job)
    schedule = phase.schedule
    for i, stage in worker.stages.items():
        held = stage.flights.held
        kept = schedule.inputs_kept(i)
        if method == "gpipe" and i != schedule.segment_of(i)[0]:
            kept = 0  # one worker has all of a segment
        assert max(graphs for graphs, _ in held) == schedule.in_flight(i)
        assert max(inputs for _, inputs in held) == kept


def test_one_worker_of_gpipe_holds_one_segment_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """P = 8, S = 2, N = 4: one graph a stage is reported, which is what a device a stage holds; a
    worker of all stages never has more than two at once."""
    job = make_job(dense(8), Regression, "gpipe", stages=8, segment=2, microbatches=4, steps=2)
    everyone: set[Flights] = set()
    most, note = 0, Flights._note

    def noted(self: Flights) -> None:
        nonlocal most
        everyone.add(self)
        note(self)
        most = max(most, sum(len(flights._graphs) for flights in everyone))

    monkeypatch.setattr(Flights, "_note", noted)
    _, worker = run_here(job)
    held = [stage.flights.held for stage in worker.stages.values()]
    assert sum(max(graphs for graphs, _ in of_stage) for of_stage in held) == 8
    assert most == 2


def test_activations_held_are_fewest_at_the_root_of_p() -> None:
    """P = 16: S = 4 holds less than half of what S = 0 does, and less than S = 1 or S = 8."""
    peaks = {}
    for size in (0, 1, 4, 8, 16):
        job = make_job(
            dense(16), Regression, "t1+t2", stages=16, segment=size, microbatches=2, steps=20
        )
        _, worker = run_here(job)
        peaks[size] = sum(stage.memory().activations_peak for stage in worker.stages.values())
    assert peaks[16] == peaks[0], "a single segment is not recomputed"
    assert peaks[4] < 0.5 * peaks[0]
    assert peaks[4] < min(peaks[1], peaks[8])


def test_a_corrected_recomputation_leaves_no_copy_of_the_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """2(e-i)+1 graphs are in flight: as many copies of the weights would be no one-copy method."""
    job = make_job(dense(4), Regression, "t1+t2", segment=2, microbatches=1)
    stage = PipelineStage(job, 1, job.network.block(range(1), 0), leaving=[True])
    made: list[StorageWeakRef] = []
    correct = stage._update.recompute_weight

    def watched(index: int, weight: Tensor) -> Tensor:
        corrected = correct(index, weight)
        made.append(StorageWeakRef(corrected.untyped_storage()))
        return corrected

    monkeypatch.setattr(stage._update, "recompute_weight", watched)
    inputs = tuple(t.float() for t in job.task().microbatch(0).inputs)
    for m in (0, 1):
        stage.forward(m, inputs, keep=Keep.INPUT)
        stage.recompute(m, None, None, exact=False)
    assert len(made) == 2 * len(stage.versions.live)
    assert all(copy.expired() for copy in made)
    stage.backward(0, (torch.ones(3, 6),), count_delay=True)
    assert all(gradient is not None for gradient in stage._gradients)


# Refused.


@pytest.mark.parametrize("run", [run_reference, partial(run_pipeline, workers=1)])
@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        ("t1", {"segment": 9}, "segment = 9: more than stages = 4; choose at most 4"),
        ("gpipe", {"segment": 9}, "segment = 9: more than stages = 4; choose at most 4"),
        ("t1", {"segment": 2, "schedule": "1f1b"}, "1f1b schedule has no recomputation"),
        ("hogwild", {"segment": 2, "schedule": "1f1b"}, "1f1b schedule has no recomputation"),
        (
            Method("mine", "my own", "pipeline", correction=Offset),
            {"segment": 2},
            r"Offset, .* method 'mine', has no recompute_weight.*choose segment = 0",
        ),
    ],
)
def test_refused(
    run: Callable[[Job], object], method: str | Method, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        run(make_job(dense(4), Regression, method, optimizer=sgd, **settings))


def test_a_synchronous_method_does_not_mind_the_schedule_that_it_does_not_read() -> None:
    job = make_job(dense(4), Regression, "gpipe", segment=2, schedule="1f1b")
    assert run_pipeline(job, 2).status == "finished"


@pytest.mark.parametrize(
    ("pieces", "words"), [({"warmup": True}, "warm-up"), ({"stash": True}, "stashed")]
)
def test_rows_that_would_do_nothing_are_refused(pieces: dict[str, bool], words: str) -> None:
    with pytest.raises(ValueError, match=f"'mine': .*{words}.*schedule=\"pipeline\""):
        Method("mine", "my own", "gpipe", **pieces)


def test_every_row_with_a_correction_can_recompute() -> None:
    rows = [row for row in METHODS.values() if row.correction is not None]
    assert rows
    for row in rows:
        job = make_job(dense(4), Regression, row, segment=2, steps=5, sync_steps=1)
        assert run_reference(job).status == "finished"
