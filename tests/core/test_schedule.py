"""The schedule against a simulation that knows only when passes happen.

`Simulation` walks the ticks, applies an update after every N-th backward of a stage and writes down
which version each pass met, how many micro-batches and old versions were alive. The closed forms
of `Schedule` must say the same, for any (P, N). The ticks themselves are held against the formulas
and the drawings of the paper's schedule, and both ends of every message against each other.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.partition import partition
from reproduce.plan import WorkerPlan
from reproduce.schedule import (
    SCHEDULES,
    GPipe,
    OneForwardOneBackward,
    Schedule,
    Ticks,
    gpipe_utilization,
)

SIZES = st.tuples(st.integers(1, 9), st.integers(1, 6), st.integers(1, 7))
"""(P, N, updates)"""
KINDS = st.sampled_from(sorted(SCHEDULES))
relaxed = settings(deadline=None, max_examples=60)


class Simulation:
    """What happens when every stage does in each tick what the schedule says, forward first."""

    def __init__(self, schedule: Schedule, total: int) -> None:
        n = schedule.microbatches
        self.at: dict[tuple[str, int, int], int] = {}
        """(kind, stage, micro-batch) -> tick"""
        self.version: dict[tuple[str, int, int], int] = {}
        """(kind, stage, micro-batch) -> updates in the weights it met"""
        self.gradients_between: dict[int, set[int]] = defaultdict(set)
        """Gradients that came between a micro-batch's passes; those in steady state"""
        self.in_flight: dict[int, int] = defaultdict(int)
        self.stashed: dict[int, int] = defaultdict(int)
        self.ops: dict[tuple[int, int], list[str]] = defaultdict(list)
        """(tick, stage) -> kinds of passes"""
        newest = dict.fromkeys(range(1, schedule.stages + 1), 0)
        gradients = dict(newest)
        flying: dict[int, dict[int, int]] = defaultdict(dict)
        gradients_at_forward: dict[tuple[int, int], int] = {}
        for tick in range(schedule.ticks(total)):
            for i in newest:
                m = schedule.forward_at(tick, i)
                if m is not None and 0 <= m < total:
                    self._note("F", i, m, tick, newest[i])
                    flying[i][m] = newest[i]
                    gradients_at_forward[i, m] = gradients[i]
                    self.in_flight[i] = max(self.in_flight[i], len(flying[i]))
                m = schedule.backward_at(tick, i)
                if m is not None and 0 <= m < total:
                    self._note("B", i, m, tick, newest[i])
                    read = flying[i].pop(m)  # a KeyError here: B before F
                    if read > 0 or gradients_at_forward[i, m] > 0:
                        self.gradients_between[i].add(gradients[i] - gradients_at_forward[i, m])
                    gradients[i] += 1
                    if gradients[i] % n == 0:
                        newest[i] += 1
                    old = set(flying[i].values()) - {newest[i]}
                    self.stashed[i] = max(self.stashed[i], len(old))
        assert not any(flying.values()), "something is left in the pipeline"

    def _note(self, kind: str, stage: int, m: int, tick: int, version: int) -> None:
        assert (kind, stage, m) not in self.at, "a pass is done twice"
        self.at[kind, stage, m] = tick
        self.version[kind, stage, m] = version
        self.ops[tick, stage].append(kind)


def simulated(kind: str, sizes: tuple[int, int, int]) -> tuple[Schedule, Simulation, int]:
    stages, microbatches, steps = sizes
    schedule = SCHEDULES[kind](stages, microbatches)
    total = steps * microbatches
    return schedule, Simulation(schedule, total), total


@relaxed
@given(KINDS, SIZES)
def test_every_pass_is_done_once_and_in_an_order_that_can_be(
    kind: str, sizes: tuple[int, int, int]
) -> None:
    schedule, run, total = simulated(kind, sizes)
    stages = schedule.stages
    assert len(run.at) == 2 * stages * total
    for m in range(total):
        for i in range(1, stages + 1):
            assert run.at["F", i, m] < run.at["B", i, m]
        for i, j in pairwise(range(1, stages + 1)):  # a message takes a tick
            assert run.at["F", i, m] < run.at["F", j, m]
            assert run.at["B", j, m] < run.at["B", i, m]
    for kind_of_pass in "FB":
        for i in range(1, stages + 1):
            ticks = [run.at[kind_of_pass, i, m] for m in range(total)]
            assert ticks == sorted(ticks)
    assert max(run.at.values()) + 1 <= schedule.ticks(total)


@relaxed
@given(KINDS, SIZES)
def test_a_stage_is_never_overbooked(kind: str, sizes: tuple[int, int, int]) -> None:
    _, run, _ = simulated(kind, sizes)
    for kinds in run.ops.values():
        allowed = [["F"], ["B"]] if kind != "ticks" else [["F"], ["B"], ["F", "B"]]
        assert kinds in allowed


@relaxed
@given(KINDS, SIZES)
def test_versions_are_those_of_the_simulation(kind: str, sizes: tuple[int, int, int]) -> None:
    schedule, run, total = simulated(kind, sizes)
    for i in range(1, schedule.stages + 1):
        for m in range(total):
            assert schedule.forward_version(m, i) == run.version["F", i, m]
            assert schedule.backward_version(m) == run.version["B", i, m]


@relaxed
@given(KINDS, SIZES)
def test_what_is_kept_is_that_of_the_simulation(kind: str, sizes: tuple[int, int, int]) -> None:
    stages, _, steps = sizes
    schedule, run, total = simulated(kind, sizes)
    for i in range(1, stages + 1):
        expected = 0 if kind == "gpipe" else run.stashed[i]
        assert schedule.stash_versions(i, steps) == expected
        assert run.in_flight[i] <= schedule.in_flight(i)
        if total > schedule.gradients_between(i):
            assert run.in_flight[i] == schedule.in_flight(i)


@relaxed
@given(st.sampled_from(["ticks", "1f1b"]), SIZES)
def test_delays_in_steady_state(kind: str, sizes: tuple[int, int, int]) -> None:
    """gradients_between counts what came between; tau is the mean age over whole mini-batches."""
    stages, n, _ = sizes
    schedule, run, total = simulated(kind, (stages, n, 2 * stages + 3))
    for i in range(1, stages + 1):
        between = schedule.gradients_between(i)
        assert between == {"ticks": 2 * (stages - i) + 1, "1f1b": stages - i}[kind]
        assert schedule.tau(i) == Fraction(between, n)
        steady = [m for m in range(total) if m >= between]
        steady = steady[: len(steady) // n * n]
        ages = [run.version["B", i, m] - run.version["F", i, m] for m in steady]
        assert Fraction(sum(ages), len(ages)) == Fraction(between, n)
        if kind == "ticks":
            assert run.gradients_between[i] <= {between}


@relaxed
@given(st.integers(1, 200), st.integers(1, 32), st.integers(0, 5000), st.data())
def test_the_formulas_of_the_paper(stages: int, n: int, m: int, data: st.DataObject) -> None:
    i = data.draw(st.integers(1, stages))
    ticks = Ticks(stages, n)
    assert ticks.forward_at(m + i - 1, i) == m
    assert ticks.backward_at(m + 2 * stages - i, i) == m
    assert ticks.forward_version(m, i) == max(0, (m - (2 * (stages - i) + 1)) // n)
    assert ticks.backward_version(m) == m // n
    half = OneForwardOneBackward(stages, n)
    assert half.tau(i) == Fraction(stages - i, n)
    assert GPipe(stages, n).tau(i) == 0
    assert GPipe(stages, n).forward_version(m, i) == m // n


def test_the_drawing_in_the_docstring() -> None:
    drawn = """
        F0 F1 F2   F3   F4   F5B0 F6B1 F7B2
        .  F0 F1   F2   F3B0 F4B1 F5B2 F6B3
        .  .  F0   F1B0 F2B1 F3B2 F4B3 F5B4
    """
    schedule = Ticks(3, 4)
    for stage, row in enumerate(drawn.split("\n")[1:4], start=1):
        for tick, cell in enumerate(row.split()):
            found = ""
            for kind, at in (("F", schedule.forward_at), ("B", schedule.backward_at)):
                m = at(tick, stage)
                found += f"{kind}{m}" if m >= 0 else ""
            assert (found or ".") == cell


def test_gpipe_flushes_after_every_mini_batch() -> None:
    """P = 3, N = 2: the triangle of the GPipe paper, twice."""
    schedule = GPipe(3, 2)
    rows = []
    for stage in (1, 2, 3):
        row = []
        for tick in range(schedule.ticks(4)):
            forward, backward = schedule.forward_at(tick, stage), schedule.backward_at(tick, stage)
            row.append(
                f"F{forward}" if forward is not None else f"B{backward}"
                if backward is not None else "."
            )  # fmt: skip
        rows.append(" ".join(row))
    assert rows == [
        "F0 F1 . . . . B0 B1 F2 F3 . . . . B2 B3",
        ". F0 F1 . . B0 B1 . . F2 F3 . . B2 B3 .",
        ". . F0 F1 B0 B1 . . . . F2 F3 B2 B3 . .",
    ]


@pytest.mark.parametrize(("devices", "n"), [(1, 1), (3, 2), (107, 16), (2, 4)])
def test_utilization_of_gpipe_is_counted_in_its_ticks(devices: int, n: int) -> None:
    schedule = GPipe(devices, n)
    busy = 2 * n * devices
    assert gpipe_utilization(devices, n) == pytest.approx(busy / (devices * schedule.ticks(n)))


def test_the_numbers_quoted_in_the_paper() -> None:
    """7.6 = (N+P-1)/N at P = 107, N = 16."""
    assert 1 / gpipe_utilization(107, 16) == 7.625


@relaxed
@given(KINDS, SIZES, st.integers(1, 9))
def test_every_send_has_its_receive_in_the_same_tick(
    kind: str, sizes: tuple[int, int, int], workers: int
) -> None:
    stages, microbatches, steps = sizes
    workers = min(workers, stages)
    schedule = SCHEDULES[kind](stages, microbatches)
    total = steps * microbatches
    plans = [
        WorkerPlan(schedule, block[0] + 1, block[-1] + 1, total)
        for block in partition(stages, workers)
    ]
    done: dict[tuple[str, int, int], int] = {}
    for tick in range(schedule.ticks(total)):
        exchanges = [plan.exchange(tick) for plan in plans]
        for up, down in pairwise(exchanges):
            assert up.send_forward == down.receive_forward
            assert down.send_backward == up.receive_backward
        assert exchanges[0].receive_forward is exchanges[0].send_backward is None
        assert exchanges[-1].send_forward is exchanges[-1].receive_backward is None
        for plan, exchange in zip(plans, exchanges, strict=True):
            edges, rest = plan.ops(tick)
            for op in [*edges, *rest]:
                assert plan.first <= op.stage <= plan.last
                assert (op.kind, op.stage, op.microbatch) not in done
                if op.kind == "B":
                    assert ("F", op.stage, op.microbatch) in done, "B before F"
                done[op.kind, op.stage, op.microbatch] = tick
            # What is sent was computed before the message is posted.
            first_part = {(op.kind, op.stage): op.microbatch for op in edges}
            if exchange.send_forward is not None:
                assert first_part["F", plan.last] == exchange.send_forward
            if exchange.send_backward is not None:
                assert first_part["B", plan.first] == exchange.send_backward
    assert len(done) == 2 * stages * total
    assert done == Simulation(schedule, total).at
    for plan in plans:
        assert plan.exchange(schedule.ticks(total)).silent
