"""Pairs are interleaved, work is compared, and what is missing says why."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from reproduce.bench.figures import Figure, measured, seconds, speed_ratio, time_ratio
from reproduce.bench.measure import (
    Contestant,
    Entry,
    Group,
    Log,
    Skipped,
    Timing,
    Unavailable,
    interleave,
    spread,
)


@dataclass
class Stub:
    """A contestant whose times are given."""

    name: str
    times: list[float]
    losses: list[float] = field(default_factory=lambda: [3.0, 2.0, 1.0])
    same_losses: int = 3
    runs: int = 0

    def __call__(self) -> Timing:
        self.runs += 1
        return Timing(self.times[self.runs - 1], 10, 10, self.losses)

    @property
    def contestant(self) -> Contestant:
        return Contestant(self.name, self, self.same_losses)


def run(*stubs: Stub, rounds: int = 2) -> tuple[Log, list[Entry | Skipped]]:
    told: list[Entry | Skipped] = []
    group = Group("g", [stub.contestant for stub in stubs])
    return interleave([group], rounds, told.append), told


def test_rounds_alternate_forwards_and_backwards() -> None:
    log, told = run(*(Stub(name, [1.0] * 3) for name in "abc"), rounds=3)
    assert [entry.contestant for entry in log.entries] == list("abccbaabc")
    assert [entry.round for entry in log.entries] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert told == log.entries


def test_ratios_are_taken_within_a_round() -> None:
    """A machine that is ten times as slow in the second round changes no ratio."""
    log, _ = run(Stub("a", [1.0, 10.0]), Stub("b", [2.0, 20.0]))
    assert time_ratio("g", "a", "b", log) == [0.5, 0.5]
    assert speed_ratio("g", "a", ["b"], log) == [2.0, 2.0]


def test_of_several_peers_the_one_with_the_better_median_is_taken_in_all_rounds() -> None:
    log, _ = run(Stub("a", [1.0, 9.0, 9.0]), Stub("b", [5.0, 5.0, 5.0]), rounds=3)
    assert seconds(log, "g", "a", "b") == [0.5, 0.5, 0.5]


def test_a_contestant_that_computes_something_else_has_no_number() -> None:
    cheat = Stub("cheat", [0.1, 0.1], losses=[3.0, 2.9, 2.8])
    log, _ = run(Stub("a", [1.0, 1.0]), cheat)
    result = measured(
        Figure("a_over_cheat", "", lambda log: time_ratio("g", "a", "cheat", log)), log
    )
    assert result.spread is None and result.deviation is None
    assert result.reason is not None and "cheat computes something else" in result.reason
    assert cheat.runs == 1


def test_losses_are_compared_on_as_many_steps_as_the_contestant_promises() -> None:
    log, _ = run(Stub("a", [1.0] * 2), Stub("stale", [1.0] * 2, [3.0, 9.0, 9.0], same_losses=1))
    assert not log.missing


def test_an_unavailable_contestant_is_asked_once_and_the_others_go_on() -> None:
    asked = []

    def absent() -> Timing:
        asked.append(1)
        raise Unavailable("not installed")

    group = Group("g", [Contestant("absent", absent), Stub("a", [1.0, 2.0]).contestant])
    told: list[Entry | Skipped] = []
    log = interleave([group], 2, told.append)
    assert asked == [1]
    assert told[0] == Skipped("g", "absent", "not installed", runs=2)
    assert [timing.seconds for timing in log.timings("g", "a")] == [1.0, 2.0]
    with pytest.raises(Unavailable, match="not installed"):
        log.timings("g", "absent")


def test_spread() -> None:
    found = spread([4.0, 1.0, 3.0, 2.0, 5.0])
    assert (found.median, found.q1, found.q3, found.min, found.max) == (3.0, 2.0, 4.0, 1.0, 5.0)
    assert spread([2.0]).median == spread([2.0]).q1 == 2.0


def test_deviation_is_relative_to_the_model() -> None:
    result = measured(Figure("u", "", lambda log: [0.45], model=0.5), Log([], {}))
    assert result.deviation == pytest.approx(-0.1)
