"""How a run unfolds: one phase, or two where a synchronous warm-up (T3) comes first.

A phase starts from an empty pipeline and ends with one; its schedule counts micro-batches from
its own start, so F(m',i) reads version W + max(0, (m' - gradients between) // N) after a warm-up
of W steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from torch import Tensor

from reproduce.job import Job
from reproduce.methods import Delays
from reproduce.schedule import SCHEDULES, GPipe, Schedule
from reproduce.stage_context import StageContext


@dataclass(frozen=True)
class Phase:
    """`steps` updates on one schedule, from update `first_step` on."""

    schedule: Schedule
    first_step: int
    steps: int
    warmup: bool = False
    """T3: synchronous steps of an asynchronous method"""

    @property
    def synchronous(self) -> bool:
        return isinstance(self.schedule, GPipe)

    @property
    def first_microbatch(self) -> int:
        return self.first_step * self.schedule.microbatches

    @property
    def updates(self) -> range:
        """The optimizer steps of this phase."""
        return range(self.first_step, self.first_step + self.steps)

    def forward_version(self, microbatch: int, stage: int) -> int:
        """Updates in the weights that F reads; `microbatch` counts from the start of training."""
        since = microbatch - self.first_microbatch
        return self.first_step + self.schedule.forward_version(since, stage)

    def recompute_version(self, microbatch: int, stage: int) -> int:
        """Updates in the newest weights at R; `microbatch` counts from the start of training."""
        since = microbatch - self.first_microbatch
        return self.first_step + self.schedule.recompute_version(since, stage)

    def flushes(self, steps: int) -> int:
        """How often the pipeline ran empty in this phase, when the run ended after `steps`."""
        done = max(0, min(steps - self.first_step, self.steps))
        return done if self.synchronous else min(done, 1)


def phases(job: Job) -> list[Phase]:
    """The phases of a run, in order; their steps add up to `job.steps`."""
    gpipe = GPipe(job.stages, job.microbatches, job.segment)
    if job.method.schedule == "gpipe":
        return [Phase(gpipe, 0, job.steps)]
    warmup = min(job.sync_steps, job.steps) if job.method.warmup else 0
    found = [Phase(gpipe, 0, warmup, warmup=True), Phase(pipeline(job), warmup, job.steps - warmup)]
    return [phase for phase in found if phase.steps]


def pipeline(job: Job) -> Schedule:
    """The schedule without flushes whose delays the method is about."""
    return SCHEDULES[job.schedule](job.stages, job.microbatches, job.segment)


def own_schedule(job: Job) -> Schedule:
    """What the method runs on after a warm-up."""
    if job.method.schedule == "gpipe":
        return GPipe(job.stages, job.microbatches, job.segment)
    return pipeline(job)


def random_delays(job: Job, stage: int) -> Delays | None:
    """The delays that the method draws for stage i, around the pipeline's own; None: it draws none.

    Their context's tau_fwd and tau_bkwd are the pipeline's mean delay.
    """
    if job.method.delays is None:
        return None
    tau = pipeline(job).tau(stage)
    return job.method.delays(_context(job, stage, tau, tau))


def stage_delays(job: Job, stage: int) -> tuple[Fraction, Fraction]:
    """(tau_fwd, tau_bkwd) of stage i under the job's method, in updates."""
    method = job.method
    if method.synchronous:
        return Fraction(0), Fraction(0)
    if method.lockfree:  # every other worker writes once between a worker's read and its write
        expected = Fraction(job.lockfree_workers - 1)
        return expected, expected
    drawn = random_delays(job, stage)
    tau = drawn.mean if drawn is not None else pipeline(job).tau(stage)
    return tau, tau if method.stash else Fraction(0)


def microbatches_to_fill(job: Job, stage: int) -> int:
    """Micro-batches of the method's own phase before stage i is in steady state: until then its
    weights are younger than the delay says, for want of older ones."""
    drawn = random_delays(job, stage)
    if drawn is not None:
        return drawn.bound * job.microbatches
    return phases(job)[-1].schedule.gradients_between(stage)


def recomputes_exactly(job: Job, schedule: Schedule) -> bool:
    """Whether a recomputation on this schedule reads the very weights of its forward pass: they
    are stashed, or no update comes between. Otherwise it reads the newest weights, which T2
    corrects."""
    return job.method.stash or (isinstance(schedule, GPipe) and job.method.delays is None)


def recomputes_on_other_weights(job: Job, stage: int = 1) -> bool:
    """Whether stage i recomputes in the method's own phase, and not exactly."""
    schedule = own_schedule(job)
    return schedule.recomputes(stage) and not recomputes_exactly(job, schedule)


def recompute_delay(job: Job, stage: int, tau_fwd: Fraction) -> Fraction | None:
    """tau_recomp of stage i in the method's own phase, in updates; None: it does not recompute."""
    tau_recomp = own_schedule(job).tau_recomp(stage)
    return tau_fwd if job.method.stash and tau_recomp is not None else tau_recomp


def stage_context(job: Job, stage: int, weights: Sequence[Tensor] = ()) -> StageContext:
    """What T1, T2 and their like are told about stage i."""
    return _context(job, stage, *stage_delays(job, stage), weights)


def _context(
    job: Job, stage: int, tau_fwd: Fraction, tau_bkwd: Fraction, weights: Sequence[Tensor] = ()
) -> StageContext:
    return StageContext(
        stage=stage,
        tau_fwd=tau_fwd,
        tau_bkwd=tau_bkwd,
        tau_recomp=recompute_delay(job, stage, tau_fwd),
        annealing_steps=job.annealing_steps,
        decay=job.decay,
        t1_exponent=job.t1_exponent,
        t1_floor=job.t1_floor,
        seed=job.seed,
        weights=weights,
    )
