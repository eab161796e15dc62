"""What is compared is comparable: both workers have the same work, both peers the same model."""

from __future__ import annotations

import pytest
import torch

from models.partition import partition
from reproduce.bench.engines import threads, time_reference
from reproduce.bench.groups import ASYNC_N, groups
from reproduce.bench.peers import random_task, sequential, time_plain
from reproduce.bench.workload import FULL, QUICK, WORKERS, Sizes, deep_job, mlp, mlp_job
from reproduce.job import Job
from reproduce.schedule import gpipe_utilization

BOTH = pytest.mark.parametrize("sizes", [FULL, QUICK], ids=["full", "quick"])


@BOTH
def test_workers_and_stages_of_the_mlp_are_balanced(sizes: Sizes) -> None:
    stages = partition(len(mlp(sizes)), sizes.stages)
    assert len({len(units) for units in stages}) == 1
    workers = partition([len(units) for units in stages], WORKERS)
    assert len({len(mine) for mine in workers}) == 1
    parameters = {sum(p.numel() for p in mlp(sizes).build(0, 0).parameters()) for _ in stages}
    assert len(parameters) == 1


@BOTH
def test_every_pair_runs_the_same_number_of_microbatches(sizes: Sizes) -> None:
    for n in ASYNC_N:
        jobs = [mlp_job(sizes, method, n) for method in ("gpipe", "async", "t1+t2")]
        assert {job.steps * job.microbatches for job in jobs} == {sizes.microbatches}
    deep = [deep_job(sizes, stages) for stages in (2, 150)]
    assert {job.steps * job.microbatches for job in deep} == {sizes.deep_microbatches}


def test_runs_are_long_enough_for_fill_and_drain_to_be_small() -> None:
    """A run has 2P - 1 ticks more than micro-batches, and they are not full."""
    assert (2 * FULL.stages - 1) / FULL.microbatches < 0.03


def test_the_model_of_gpipe() -> None:
    assert [gpipe_utilization(2, n) for n in ASYNC_N] == pytest.approx([1 / 2, 2 / 3, 4 / 5])


@BOTH
def test_contestants_have_names_of_their_own(sizes: Sizes) -> None:
    names = [(group.name, one.name) for group in groups(sizes) for one in group.contestants]
    assert len(names) == len(set(names))
    assert all(len(group.contestants) > 1 for group in groups(sizes))


@pytest.fixture
def job() -> Job:
    return mlp_job(QUICK, "gpipe", 4)


def test_peers_get_the_initial_weights_of_our_own(job: Job) -> None:
    ours = [w for j in range(len(job.network)) for w in job.network.build(j, job.seed).parameters()]
    theirs = list(sequential(job).parameters())
    assert len(ours) == len(theirs) > 0
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_minibatch_is_its_microbatches(job: Job) -> None:
    task = random_task(job)
    inputs, target = task.minibatch(3, 4)
    parts = [task.microbatch(m) for m in range(12, 16)]
    assert all(torch.equal(a, b.inputs[0]) for a, b in zip(inputs.chunk(4), parts, strict=True))
    assert all(torch.equal(a, b.target) for a, b in zip(target.chunk(4), parts, strict=True))


@pytest.mark.parametrize("chunked", [True, False])
def test_the_plain_loop_trains_as_the_reference_does(job: Job, chunked: bool) -> None:
    """All along, and the losses move: equal ones are no accident."""
    ours, plain = time_reference(job).losses, time_plain(job, 1, chunked).losses[: job.steps]
    assert ours == pytest.approx(plain, rel=1e-5)
    assert max(ours) - min(ours) > 1e-3


def test_the_number_of_threads_is_put_back() -> None:
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError), threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise RuntimeError
    assert torch.get_num_threads() == before
