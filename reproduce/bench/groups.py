"""What is run side by side."""

from __future__ import annotations

from functools import partial

from reproduce.bench.engines import time_pipeline, time_reference
from reproduce.bench.measure import Contestant, Group
from reproduce.bench.peers import time_plain, time_torch_pipelining, time_torchgpipe
from reproduce.bench.workload import DEEP_STAGES, WORKERS, Sizes, deep_job, mlp_job

ASYNC_N = (1, 2, 4)
"""Numbers of micro-batches at which asynchronous and synchronous pipelines are compared"""
PEERS_N = 4
TORCH = ("torch_gpipe", "torch_1f1b")
TORCHGPIPE = ("torchgpipe_1_thread", "torchgpipe_2_threads")


def groups(sizes: Sizes) -> list[Group]:
    """All that is run. Where weights are stale only the first step's loss can be GPipe's."""
    pairs = [Group(f"n{n}", [_gpipe(sizes, n), _async(sizes, n)]) for n in ASYNC_N if n != PEERS_N]
    return [*pairs, _beside_peers(sizes), _reference(sizes), _deep(sizes)]


def _gpipe(sizes: Sizes, n: int) -> Contestant:
    return Contestant("gpipe", partial(time_pipeline, mlp_job(sizes, "gpipe", n), WORKERS))


def _async(sizes: Sizes, n: int, method: str = "async") -> Contestant:
    return Contestant(method, partial(time_pipeline, mlp_job(sizes, method, n), WORKERS), 1)


def _beside_peers(sizes: Sizes) -> Group:
    job = mlp_job(sizes, "gpipe", PEERS_N)
    contestants = [
        _gpipe(sizes, PEERS_N),
        _async(sizes, PEERS_N),
        _async(sizes, PEERS_N, "t1+t2"),
        Contestant("torch_gpipe", partial(time_torch_pipelining, job, WORKERS, "gpipe")),
        Contestant("torch_1f1b", partial(time_torch_pipelining, job, WORKERS, "1f1b")),
        Contestant("torchgpipe_1_thread", partial(time_torchgpipe, job, WORKERS, 1)),
        Contestant("torchgpipe_2_threads", partial(time_torchgpipe, job, WORKERS, 2)),
        Contestant("plain_2_threads", partial(time_plain, job, 2)),
        Contestant("plain_2_threads_whole", partial(time_plain, job, 2, chunked=False)),
    ]
    return Group(f"n{PEERS_N}", contestants)


def _reference(sizes: Sizes) -> Group:
    job = mlp_job(sizes, "gpipe", PEERS_N)
    contestants = [
        Contestant("plain_1_thread", partial(time_plain, job, 1)),
        Contestant("reference", partial(time_reference, job)),
    ]
    return Group("reference", contestants)


def _deep(sizes: Sizes) -> Group:
    """One worker; until the first update both cuts compute the same."""
    contestants = [
        Contestant(f"stages_{stages}", partial(time_pipeline, deep_job(sizes, stages), 1), 1)
        for stages in (2, DEEP_STAGES)
    ]
    return Group("deep", contestants)
