"""Which numbers come of the log. `a_over_b` is how many times a is of b."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from reproduce.bench.groups import ASYNC_N, PEERS_N, TORCH, TORCHGPIPE
from reproduce.bench.measure import Log, Spread, Unavailable, spread
from reproduce.bench.workload import WORKERS
from reproduce.schedule import gpipe_utilization


@dataclass(frozen=True)
class Figure:
    """A number of the benchmark: its value in every round, and what theory says."""

    key: str
    meaning: str
    values: Callable[[Log], list[float]]
    model: float | None = None


@dataclass(frozen=True)
class Result:
    """A figure as measured, or why it was not."""

    figure: Figure
    spread: Spread | None
    reason: str | None = None

    @property
    def deviation(self) -> float | None:
        """Of the median from the model, relative to the model."""
        if self.spread is None or self.figure.model is None:
            return None
        return self.spread.median / self.figure.model - 1.0


def measured(figure: Figure, log: Log) -> Result:
    try:
        return Result(figure, spread(figure.values(log)))
    except Unavailable as error:
        return Result(figure, None, str(error))


def seconds(log: Log, group: str, *contestants: str) -> list[float]:
    """A micro-batch's seconds in every round; of several contestants, of the one whose median is
    best.

    Raises:
        Unavailable: one of them is missing.
    """
    series = [
        [timing.seconds_per_microbatch for timing in log.timings(group, one)] for one in contestants
    ]
    return min(series, key=lambda values: spread(values).median)


def time_ratio(group: str, a: str, b: str, log: Log) -> list[float]:
    """How many times as long a takes as b, round by round."""
    pairs = zip(seconds(log, group, a), seconds(log, group, b), strict=True)
    return [mine / theirs for mine, theirs in pairs]


def speed_ratio(group: str, a: str, b: Sequence[str], log: Log) -> list[float]:
    """How many times as much a gets done as (the best of) b, round by round."""
    pairs = zip(seconds(log, group, a), seconds(log, group, *b), strict=True)
    return [theirs / mine for mine, theirs in pairs]


def utilization(group: str, contestant: str, log: Log) -> list[float]:
    """Busy time over wall time, mean over workers, round by round."""
    found = [timing.utilization for timing in log.timings(group, contestant)]
    return [value for value in found if value is not None]


def _utilizations() -> list[Figure]:
    most = Figure(
        "async_utilization",
        f"busy time over wall time, {WORKERS} workers, asynchronous, N = {PEERS_N}",
        partial(utilization, f"n{PEERS_N}", "async"),
        model=1.0,
    )
    return [
        most,
        *(
            Figure(
                f"async_utilization_n{n}",
                f"the same, N = {n}",
                partial(utilization, f"n{n}", "async"),
                model=1.0,
            )
            for n in ASYNC_N
            if n != PEERS_N
        ),
        *(
            Figure(
                f"gpipe_utilization_n{n}",
                f"the same under GPipe, N = {n}; the model is N / (N + {WORKERS - 1})",
                partial(utilization, f"n{n}", "gpipe"),
                model=gpipe_utilization(WORKERS, n),
            )
            for n in ASYNC_N
        ),
    ]


def _async_over_gpipe() -> list[Figure]:
    return [
        Figure(
            f"async_over_gpipe_n{n}",
            f"throughput, asynchronous over GPipe, N = {n}",
            partial(speed_ratio, f"n{n}", "async", ["gpipe"]),
            model=1.0 / gpipe_utilization(WORKERS, n),
        )
        for n in ASYNC_N
    ]


def _over_peers() -> list[Figure]:
    group = f"n{PEERS_N}"
    return [
        Figure(
            "gpipe_over_torch",
            "throughput, our GPipe over torch.distributed.pipelining (its better schedule)",
            partial(speed_ratio, group, "gpipe", TORCH),
        ),
        Figure(
            "gpipe_over_torchgpipe",
            "throughput, our GPipe over torchgpipe (its better thread count)",
            partial(speed_ratio, group, "gpipe", TORCHGPIPE),
        ),
        Figure(
            "async_over_plain_two_threads",
            "throughput, asynchronous over a plain loop on 2 threads, gradients accumulated",
            partial(speed_ratio, group, "async", ["plain_2_threads"]),
        ),
        Figure(
            "async_over_plain_two_threads_whole",
            "the same, the plain loop taking the mini-batch in one go",
            partial(speed_ratio, group, "async", ["plain_2_threads_whole"]),
        ),
    ]


def _times() -> list[Figure]:
    return [
        Figure(
            "reference_over_plain",
            "time, reference engine over a plain accumulation loop, 1 thread, synchronous",
            partial(time_ratio, "reference", "reference", "plain_1_thread"),
        ),
        Figure(
            "stages150_over_stages2",
            "time a micro-batch, ResNet-152 of width 8 cut in 150 stages over 2, one worker",
            partial(time_ratio, "deep", "stages_150", "stages_2"),
        ),
        Figure(
            "t1t2_over_async",
            f"time a step, T1+T2 over no technique, {WORKERS} workers, N = {PEERS_N}",
            partial(time_ratio, f"n{PEERS_N}", "t1+t2", "async"),
        ),
    ]


FIGURES = (*_utilizations(), *_async_over_gpipe(), *_over_peers(), *_times())
