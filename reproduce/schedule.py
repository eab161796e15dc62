"""Who does what in each tick, and which weight version each pass reads. Pure arithmetic.

Stage i = 1..P, micro-batch m = 0, 1, ..., N micro-batches an update. The paper's tick schedule,
P = 3 (F forward, B backward, the number is m):

    tick      0    1    2    3    4    5     6     7
    stage 1   F0   F1   F2   F3   F4   F5B0  F6B1  F7B2
    stage 2        F0   F1   F2   F3B0 F4B1  F5B2  F6B3
    stage 3             F0   F1B0 F2B1 F3B2  F4B3  F5B4

Within a tick a stage's forward comes first, on weights read before that tick's backward is
applied, and stages depend on their neighbours' previous tick only. Everything else in the project
that needs a delay, a version or a number of micro-batches in flight asks a `Schedule`.

PipeMare Recompute cuts the pipeline into segments of S stages s..e. The forward pass keeps the
input of stage s only; R, a second forward pass with a graph, is just in time for the backward pass.
P = 4, S = 2 (in a tick: F, then R, then B):

    tick      0    1    2    3    4    5      6      7        8
    stage 1   F0   F1   F2   F3   F4   F5R0   F6R1   F7R2B0   F8R3B1
    stage 2        F0   F1   F2   F3   F4     F5R0B0 F6R1B1   F7R2B2
    stage 3             F0   F1   F2   F3B0   F4B1   F5B2     F6B3
    stage 4                  F0   F1B0 F2B1   F3B2   F4B3     F5B4

At S = sqrt(P) about P S + P^2 / S = 2 P^1.5 activations are held, in place of P^2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Schedule(ABC):
    """P stages, N micro-batches an update. Ticks and micro-batches count from 0, from empty.

    Raises:
        ValueError: a segment that is longer than the pipeline, or on a schedule without one.
    """

    stages: int
    microbatches: int
    segment: int = 0
    """S, stages a segment of PipeMare Recompute; 0: activations are kept"""

    def __post_init__(self) -> None:
        if self.segment > self.stages:
            raise ValueError(
                f"segment = {self.segment}: more than stages = {self.stages}; "
                f"choose at most {self.stages}"
            )

    @abstractmethod
    def forward_at(self, tick: int, stage: int) -> int | None:
        """The micro-batch whose forward stage i does in this tick; None or negative: none."""

    @abstractmethod
    def backward_at(self, tick: int, stage: int) -> int | None:
        """The micro-batch whose backward stage i does in this tick; None or negative: none."""

    @abstractmethod
    def ticks(self, microbatches: int) -> int:
        """Ticks from empty to empty for this many micro-batches."""

    @abstractmethod
    def gradients_between(self, stage: int) -> int:
        """Micro-batch gradients that reach stage i between F(m,i) and B(m,i)."""

    def forward_version(self, microbatch: int, stage: int) -> int:
        """Updates in the weights that F(m,i) reads: max(0, (m - gradients between) // N)."""
        return max(0, (microbatch - self.gradients_between(stage)) // self.microbatches)

    def backward_version(self, microbatch: int) -> int:
        """Updates in the weights that B(m,i) meets: m // N."""
        return microbatch // self.microbatches

    def tau(self, stage: int) -> Fraction:
        """Mean delay of the forward weights of stage i, in updates."""
        return Fraction(self.gradients_between(stage), self.microbatches)

    def in_flight(self, stage: int) -> int:
        """Most micro-batches whose activations (a graph) stage i holds at once.

        Of stage i alone. The sum over stages is what one device a stage holds; the stages of one
        device need not be at their most at the same time.
        """
        if self.recomputes(stage):
            return self.gradients_after_recompute(stage) + 1
        return self.gradients_between(stage) + 1

    # PipeMare Recompute.

    def segment_of(self, stage: int) -> range:
        """The stages s..e of i's segment: S of them from stage 1 on, fewer in the last one.

        Without recompute the pipeline is one segment.
        """
        size = self.segment or self.stages
        start = stage - (stage - 1) % size
        return range(start, min(start + size, self.stages + 1))

    @property
    def segments(self) -> list[range]:
        """All segments, in order."""
        starts = range(1, self.stages + 1, self.segment or self.stages)
        return [self.segment_of(start) for start in starts]

    @abstractmethod
    def recomputes(self, stage: int) -> bool:
        """Whether stage i keeps no graph from its forward pass."""

    @abstractmethod
    def recompute_at(self, tick: int, stage: int) -> int | None:
        """The micro-batch that stage i recomputes in this tick; None or negative: none."""

    def gradients_after_recompute(self, stage: int) -> int:
        """Micro-batch gradients that reach stage i between R(m,i) and B(m,i)."""
        return 0

    def recompute_version(self, microbatch: int, stage: int) -> int:
        """Updates in the newest weights at R(m,i): max(0, (m - gradients after) // N)."""
        return max(0, (microbatch - self.gradients_after_recompute(stage)) // self.microbatches)

    def tau_recomp(self, stage: int) -> Fraction | None:
        """Mean delay of the newest weights at R, in updates; None where stage i does no R."""
        if not self.recomputes(stage):
            return None
        return Fraction(self.gradients_after_recompute(stage), self.microbatches)

    def inputs_kept(self, stage: int) -> int:
        """Most inputs that stage i keeps at once for recomputations that are still to come."""
        if not self.recomputes(stage) or stage != self.segment_of(stage)[0]:
            return 0
        between = self.gradients_between(stage) - self.gradients_after_recompute(stage)
        return between + 1

    # PipeDream.

    def stash_versions(self, stage: int, steps: int) -> int:
        """Most old weight versions that PipeDream keeps on stage i in a run of `steps` updates.

        After update t (from 0) the micro-batches (t+1)N .. (t+1)N + between - 1 are in flight;
        the oldest read version ((t+1)N - between) // N, the newest no later one than t.
        """
        n, total = self.microbatches, steps * self.microbatches
        between = self.gradients_between(stage)
        most = 0
        for t in range(min(steps, 2 * (between // n + 2))):
            flying = range((t + 1) * n, min((t + 1) * n + between, total))
            most = max(most, len({self.forward_version(m, stage) for m in flying}))
        return most


class Ticks(Schedule):
    """The paper's schedule: one forward and one backward a tick, no flush.

    F(m,i) at tick m + i - 1 and B(m,i) at tick m + 2P - i: 2(P-i) + 1 gradients between.
    R(m,i) at tick m + 2P - 2e + i, e the last stage of i's segment: it reaches stage e in the tick
    of B(m,e), and 2(e-i) gradients come after it. In the last segment (e = P) that would be one
    tick after the forward pass and save nothing: it keeps its activations, and has no tau_recomp.
    """

    def forward_at(self, tick: int, stage: int) -> int:
        return tick - stage + 1

    def backward_at(self, tick: int, stage: int) -> int:
        return tick - 2 * self.stages + stage

    def ticks(self, microbatches: int) -> int:
        return microbatches + 2 * self.stages - 1

    def gradients_between(self, stage: int) -> int:
        return 2 * (self.stages - stage) + 1

    def recomputes(self, stage: int) -> bool:
        return self.segment > 0 and self.segment_of(stage)[-1] < self.stages

    def recompute_at(self, tick: int, stage: int) -> int | None:
        if not self.recomputes(stage):
            return None
        return tick - 2 * self.stages + 2 * self.segment_of(stage)[-1] - stage

    def gradients_after_recompute(self, stage: int) -> int:
        return 2 * (self.segment_of(stage)[-1] - stage) if self.recomputes(stage) else 0


class OneForwardOneBackward(Schedule):
    """`1f1b`: forward and backward alternate, no flush, one pass a (half as long) tick.

    F(m,i) at tick 2m + i - 1 and B(m,i) at tick 2m + 2P - i: P - i gradients between. It has no
    recomputation: none is defined for it.
    """

    def __post_init__(self) -> None:
        if self.segment:
            raise ValueError(
                f"segment = {self.segment}: the 1f1b schedule has no recomputation; "
                "choose schedule = ticks or segment = 0"
            )

    def forward_at(self, tick: int, stage: int) -> int | None:
        m, odd = divmod(tick - stage + 1, 2)
        return None if odd else m

    def backward_at(self, tick: int, stage: int) -> int | None:
        m, odd = divmod(tick - 2 * self.stages + stage, 2)
        return None if odd else m

    def ticks(self, microbatches: int) -> int:
        return 2 * (microbatches + self.stages - 1)

    def gradients_between(self, stage: int) -> int:
        return self.stages - stage

    def recomputes(self, stage: int) -> bool:
        return False

    def recompute_at(self, tick: int, stage: int) -> None:
        return None


class GPipe(Schedule):
    """All forwards of a mini-batch, then all backwards, then a flush: no delay.

    With t = m // N and j = m mod N, F(m,i) at tick 2t(N+P-1) + j + i - 1 and
    B(m,i) at tick (2t+1)(N+P-1) + j + P - i. R(m,i) is in the tick of B(m,i), on every
    stage: a device is a stage here, and recomputes from its own input. (A device with several
    stages recomputes segment by segment what it holds of them: on the same weights, so training is
    the same, but it keeps one input a segment and holds the graphs of one segment at a time.)
    """

    @property
    def _phase(self) -> int:
        return self.microbatches + self.stages - 1

    def _microbatch(self, tick: int, hops: int, backward: bool) -> int | None:
        phase, within = divmod(tick, self._phase)
        step, is_backward = divmod(phase, 2)
        j = within - hops
        if bool(is_backward) != backward or not 0 <= j < self.microbatches:
            return None
        return step * self.microbatches + j

    def forward_at(self, tick: int, stage: int) -> int | None:
        return self._microbatch(tick, stage - 1, backward=False)

    def backward_at(self, tick: int, stage: int) -> int | None:
        return self._microbatch(tick, self.stages - stage, backward=True)

    def ticks(self, microbatches: int) -> int:
        return 2 * self._phase * (-(-microbatches // self.microbatches))

    def gradients_between(self, stage: int) -> int:
        return 0

    def forward_version(self, microbatch: int, stage: int) -> int:
        return microbatch // self.microbatches

    def recomputes(self, stage: int) -> bool:
        return self.segment > 0

    def recompute_at(self, tick: int, stage: int) -> int | None:
        return self.backward_at(tick, stage) if self.recomputes(stage) else None

    def in_flight(self, stage: int) -> int:
        return 1 if self.recomputes(stage) else self.microbatches

    def inputs_kept(self, stage: int) -> int:
        return self.microbatches if self.recomputes(stage) else 0

    def stash_versions(self, stage: int, steps: int) -> int:
        return 0


SCHEDULES: dict[str, type[Schedule]] = {
    "gpipe": GPipe,
    "ticks": Ticks,
    "1f1b": OneForwardOneBackward,
}


def gpipe_utilization(devices: int, microbatches: int) -> float:
    """N / (N + K - 1): busy share of K devices under GPipe; asynchronous methods have 1."""
    return microbatches / (microbatches + devices - 1)
