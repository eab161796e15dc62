"""The settings every cell has, as table keys and as `--set key=value`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Settings(BaseModel):
    """One cell's settings; a task and a model add theirs (see `workloads`)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    stages: Positive
    """P"""
    microbatches: Positive
    """N; it divides batch_size"""
    batch_size: Positive
    """samples an optimizer step"""
    steps: Positive
    """optimizer steps"""
    seed: Count = 0

    optimizer: str = "sgd"
    """a class of torch.optim, in any case"""
    lr: Annotated[float, Field(gt=0)]
    momentum: Fraction | None = None
    """None, here and below: what torch defaults to"""
    betas: Annotated[list[Fraction], Field(min_length=2, max_length=2)] | None = None
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    lr_schedule: Literal["constant", "cosine", "inverse_sqrt"] = "constant"
    lr_warmup: Count = 0
    """steps over which the learning rate rises linearly"""

    annealing_steps: Count = 0
    """K of T1; 0: no rescheduling"""
    t1_exponent: Annotated[float, Field(ge=0)] = 1.0
    """e of T1: an extension, the paper's form at 1"""
    t1_floor: Annotated[float, Field(ge=1)] = 1.0
    """smallest delay that T1 divides by, in updates: an extension"""
    decay: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """D of T2"""
    sync_steps: Count = 0
    """W of T3"""
    schedule: Literal["ticks", "1f1b"] = "ticks"
    """what an asynchronous method runs on"""
    segment: Count = 0
    """S, stages a segment of PipeMare Recompute; 0: activations are kept"""

    label_smoothing: Fraction = 0.0
    eval_every: Count = 0
    """steps between evaluations; 0: only after the last"""
    target: Annotated[float, Field(gt=0)] | None = None
    """what the metric is to reach, in percent: the quality that time to target is told for"""
    divergence_loss: Annotated[float, Field(gt=0)] = 100.0
    """a mini-batch loss above this, or not finite, ends the run as diverged"""

    engine: Literal["pipeline", "reference"] = "pipeline"
    workers: Positive = 1
    """K_w, processes of the pipeline engine"""
    lockfree_workers: Positive = 8
    """processes that share the weights of a lock-free method"""
    threads: Positive = 1
    """CPU threads a worker"""
    measure_discrepancy: bool = False
    """record how far T2's backward weights are from the forward ones; reference engine only"""
    trace: bool = False
    """keep a timeline of what every worker of the pipeline engine did"""

    @field_validator("optimizer")
    @classmethod
    def _lower(cls, name: str) -> str:
        return name.lower()


PLACEMENT = frozenset({"workers", "threads", "target"})
"""Settings that say where a run happens or how it is read, and never what comes out of it"""
