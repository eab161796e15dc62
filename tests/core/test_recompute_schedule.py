"""When PipeMare Recompute recomputes, against a simulation that knows only when passes happen.

`walk` does in each tick what the schedule says and writes down the tick and the version of every
recomputation, and how many graphs and inputs a stage held. The closed forms of `Schedule` must say
the same for any (P, S, N), and both ends of every message must know of it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.partition import partition
from reproduce.plan import WorkerPlan
from reproduce.schedule import SCHEDULES, GPipe, OneForwardOneBackward, Schedule, Ticks
from reproduce.schedule_text import render

SIZES = st.integers(1, 10).flatmap(
    lambda p: st.tuples(st.just(p), st.integers(1, 4), st.integers(1, p), st.integers(1, 25))
)
"""(P, N, S, micro-batches)"""
relaxed = settings(deadline=None, max_examples=80)


class Walk:
    """What happens when every stage does F, R and B in each tick as the schedule says."""

    def __init__(self, schedule: Schedule, total: int) -> None:
        self.at: dict[tuple[str, int, int], int] = {}
        """(kind, stage, micro-batch) -> tick"""
        self.version: dict[tuple[int, int], int] = {}
        """(stage, micro-batch) -> updates made when it is recomputed"""
        self.after: dict[tuple[int, int], int] = {}
        """(stage, micro-batch) -> gradients that came between R and B, itself left out"""
        self.graphs: dict[int, int] = defaultdict(int)
        self.inputs: dict[int, int] = defaultdict(int)
        gradients: dict[int, int] = defaultdict(int)
        waiting: dict[int, set[int]] = defaultdict(set)
        graphs: dict[int, set[int]] = defaultdict(set)
        for tick in range(schedule.ticks(total)):
            for i in range(1, schedule.stages + 1):
                recomputes = schedule.recomputes(i)
                m = schedule.forward_at(tick, i)
                if m is not None and 0 <= m < total:
                    self._note("F", i, m, tick)
                    (waiting if recomputes else graphs)[i].add(m)
                    self._count(i, graphs, waiting)
                m = schedule.recompute_at(tick, i)
                if m is not None and 0 <= m < total:
                    self._note("R", i, m, tick)
                    waiting[i].remove(m)  # a KeyError here: R before F
                    graphs[i].add(m)
                    self._count(i, graphs, waiting)
                    self.version[i, m] = gradients[i] // schedule.microbatches
                    self.after[i, m] = -gradients[i]
                m = schedule.backward_at(tick, i)
                if m is not None and 0 <= m < total:
                    self._note("B", i, m, tick)
                    graphs[i].remove(m)  # a KeyError here: B without a graph
                    if recomputes:
                        self.after[i, m] += gradients[i]
                    gradients[i] += 1
        assert not any(graphs.values()) and not any(waiting.values())

    def _note(self, kind: str, stage: int, m: int, tick: int) -> None:
        assert (kind, stage, m) not in self.at, "a pass is done twice"
        self.at[kind, stage, m] = tick

    def _count(self, i: int, graphs: dict[int, set[int]], waiting: dict[int, set[int]]) -> None:
        self.graphs[i] = max(self.graphs[i], len(graphs[i]))
        self.inputs[i] = max(self.inputs[i], len(waiting[i]))


@relaxed
@given(SIZES)
def test_every_stage_before_the_last_segment_recomputes_once_in_an_order_that_can_be(
    sizes: tuple[int, int, int, int],
) -> None:
    stages, n, size, total = sizes
    schedule = Ticks(stages, n, size)
    walk = Walk(schedule, total)
    recomputed = [i for i in range(1, stages + 1) if schedule.recomputes(i)]
    assert recomputed == list(range(1, (math.ceil(stages / size) - 1) * size + 1))
    assert sum(kind == "R" for kind, _, _ in walk.at) == len(recomputed) * total
    for m in range(total):
        for i in recomputed:
            segment = schedule.segment_of(i)
            assert walk.at["F", i, m] < walk.at["R", i, m] <= walk.at["B", i, m]
            assert walk.at["R", segment[-1], m] == walk.at["B", segment[-1], m], "just in time"
            if i != segment[0]:  # a boundary takes a tick
                assert walk.at["R", i, m] == walk.at["R", i - 1, m] + 1


@relaxed
@given(SIZES)
def test_versions_delays_and_counts_are_those_of_the_simulation(
    sizes: tuple[int, int, int, int],
) -> None:
    stages, n, size, total = sizes
    schedule = Ticks(stages, n, size)
    walk = Walk(schedule, total)
    for i in range(1, stages + 1):
        segment = schedule.segment_of(i)
        if not schedule.recomputes(i):
            assert schedule.tau_recomp(i) is None
            assert schedule.inputs_kept(i) == 0
            assert schedule.in_flight(i) == 2 * (stages - i) + 2
            continue
        after = 2 * (segment[-1] - i)
        assert schedule.gradients_after_recompute(i) == after
        assert schedule.tau_recomp(i) == Fraction(after, n)
        for m in range(total):
            assert schedule.recompute_version(m, i) == walk.version[i, m]
            assert walk.after[i, m] == min(m, after)
        starts = i == segment[0]
        assert schedule.in_flight(i) == after + 1
        assert schedule.inputs_kept(i) == (2 * (stages - segment[-1]) + 2 if starts else 0)
        assert walk.graphs[i] == min(after + 1, total)
        if starts:
            assert walk.inputs[i] == min(schedule.inputs_kept(i), total)


@relaxed
@given(SIZES)
def test_segments_are_runs_of_s_stages(sizes: tuple[int, int, int, int]) -> None:
    stages, n, size, _ = sizes
    for schedule in (Ticks(stages, n, size), GPipe(stages, n, size)):
        segments = schedule.segments
        assert [i for segment in segments for i in segment] == list(range(1, stages + 1))
        assert [len(segment) for segment in segments[:-1]] == [size] * (len(segments) - 1)
        assert 1 <= len(segments[-1]) <= size
        assert all(schedule.segment_of(i) == segment for segment in segments for i in segment)
    for kind in SCHEDULES.values():
        whole = kind(stages, n)
        assert whole.segments == [range(1, stages + 1)]
        assert not any(whole.recomputes(i) for i in range(1, stages + 1))
        assert all(whole.recompute_at(tick, 1) is None for tick in range(whole.ticks(4)))


@relaxed
@given(SIZES)
def test_gpipe_recomputes_right_before_the_backward_pass(sizes: tuple[int, int, int, int]) -> None:
    stages, n, size, _ = sizes
    schedule, total = GPipe(stages, n, size), 2 * n
    walk = Walk(schedule, total)
    for i in range(1, stages + 1):
        assert schedule.tau_recomp(i) == 0
        assert (walk.graphs[i], walk.inputs[i]) == (schedule.in_flight(i), schedule.inputs_kept(i))
        assert (walk.graphs[i], walk.inputs[i]) == (1, n)
        for m in range(total):
            assert walk.at["R", i, m] == walk.at["B", i, m]
            assert schedule.recompute_version(m, i) == walk.version[i, m] == m // n


@relaxed
@given(SIZES, st.integers(1, 10))
def test_every_recomputation_that_crosses_a_border_is_sent_and_received(
    sizes: tuple[int, int, int, int], workers: int
) -> None:
    stages, n, size, total = sizes
    schedule = Ticks(stages, n, size)
    plans = [
        WorkerPlan(schedule, block[0] + 1, block[-1] + 1, total)
        for block in partition(stages, min(workers, stages))
    ]
    done: dict[tuple[str, int, int], int] = {}
    crossed = 0
    for tick in range(schedule.ticks(total)):
        exchanges = [plan.exchange(tick) for plan in plans]
        assert exchanges[0].receive_recompute is exchanges[-1].send_recompute is None
        for up, down in pairwise(exchanges):
            assert up.send_recompute == down.receive_recompute
            crossed += up.send_recompute is not None
        for plan, exchange in zip(plans, exchanges, strict=True):
            edges, rest = plan.ops(tick)
            for op in [*edges, *rest]:
                if op.kind == "R":
                    assert ("F", op.stage, op.microbatch) in done, "R before F"
                if op.kind == "B" and schedule.recomputes(op.stage):
                    assert ("R", op.stage, op.microbatch) in done, "B before R"
                done[op.kind, op.stage, op.microbatch] = tick
            if exchange.send_recompute is not None:
                assert done["R", plan.last, exchange.send_recompute] == tick
                assert ("R", plan.last, exchange.send_recompute) in edges
    assert done == Walk(schedule, total).at
    inside = [p.last for p in plans[:-1] if p.last != schedule.segment_of(p.last)[-1]]
    assert crossed == total * sum(schedule.recomputes(i) for i in inside)


@pytest.mark.parametrize("root", [4, 9, 12])
def test_activations_grow_with_the_power_of_three_halves(root: int) -> None:
    """P S + P^2 / S at S = sqrt(P) is 2 P^1.5; without recompute P^2."""
    p = root * root

    def held(schedule: Schedule) -> int:
        return sum(schedule.in_flight(i) + schedule.inputs_kept(i) for i in range(1, p + 1))

    assert held(Ticks(p, 1)) == p * p + p
    assert held(Ticks(p, 1, root)) == pytest.approx(2 * p**1.5, rel=2 / root)
    best = min(range(1, p + 1), key=lambda size: held(Ticks(p, 1, size)))
    assert held(Ticks(p, 1, root)) <= 1.1 * held(Ticks(p, 1, best))


def test_the_drawing_in_the_docstring() -> None:
    drawn = """
        F0 F1 F2 F3   F4   F5R0   F6R1   F7R2B0 F8R3B1
        .  F0 F1 F2   F3   F4     F5R0B0 F6R1B1 F7R2B2
        .  .  F0 F1   F2   F3B0   F4B1   F5B2   F6B3
        .  .  .  F0   F1B0 F2B1   F3B2   F4B3   F5B4
    """
    schedule = Ticks(4, 4, 2)
    for stage, row in enumerate(drawn.split("\n")[1:5], start=1):
        for tick, cell in enumerate(row.split()):
            at = (schedule.forward_at, schedule.recompute_at, schedule.backward_at)
            found = [(kind, f(tick, stage)) for kind, f in zip("FRB", at, strict=True)]
            assert "".join(f"{k}{m}" for k, m in found if m is not None and m >= 0) == (
                cell if cell != "." else ""
            )


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"segment = 5: more than stages = 4; choose at most 4"):
        Ticks(4, 1, 5)
    with pytest.raises(ValueError, match=r"segment = 2: .*1f1b.*schedule = ticks or segment = 0"):
        OneForwardOneBackward(4, 1, 2)


def test_the_text_shows_recomputations_and_their_delay() -> None:
    from reproduce.methods import METHODS

    text = render(METHODS["t1+t2"], 4, 2, 3, segment=2)
    row = next(line for line in text.splitlines() if line.startswith("stage 1"))
    assert row.split()[2:11] == [
        "F0.0", "F1.0", "F2.0", "F3.0", "F4.0", "F5.0R0.0", "R1.0", "R2.0B0.0", "R3.0B1.0",
    ]  # fmt: skip
    delays = [line.split() for line in text.splitlines() if line.startswith("    ")]
    assert [line[:1] + line[4:6] for line in delays] == [
        ["1", "0", "1"], ["2", "0", "0"], ["3", "0", "not"], ["4", "0", "not"],
    ]  # fmt: skip
    stashed = render(METHODS["pipedream"], 4, 2, 3, segment=2)
    assert "R5.0" in stashed and "R5.1" not in stashed
