"""Networks at the edge of what a `Unit` may be: both engines still agree, or the job is refused.

Each case has its story: a way in which autograd hands the same memory to two owners, or nothing at
all, and in which an engine that keeps live weights can go wrong in silence where one that copies
everything cannot. Whatever the network, any K_w must give what the reference gives.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from core_cases import Affine, Dense, Regression, assert_same, make_job, network, plain_sgd, sgd
from torch import Tensor, nn

from models.unit import Boundary, Network, Unit
from reproduce.engine import run_pipeline
from reproduce.job import Job
from reproduce.reference import run_reference

WIDTH, BATCH = 6, 3


class Shift(Unit):
    """``(x,) -> (x + a,)``, `a` as large as x: the gradients of a and x are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(BATCH, WIDTH) * 0.1)

    def forward(self, x: Tensor) -> Boundary:
        return (x + self.a,)


class TwoShifts(Unit):
    """``(x,) -> (x + a + b,)``: the gradients of a and b are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(BATCH, WIDTH) * 0.1)
        self.b = nn.Parameter(torch.randn(BATCH, WIDTH) * 0.1)

    def forward(self, x: Tensor) -> Boundary:
        return (x + self.a + self.b,)


class MeanOfOutput(Regression):
    """The loss is the plain mean of the output, whose gradient is one number expanded."""

    def loss(self, outputs: Boundary, target: Tensor) -> Tensor:
        return outputs[0].mean()


class Queries(Unit):
    """``(x,) -> (x, queries)``: a view of a weight leaves the stage, as learnt queries do."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Boundary:
        return x, self.queries.expand(BATCH, WIDTH)


class DetachedQueries(Queries):
    """The same without a gradient: still the memory of a weight."""

    def forward(self, x: Tensor) -> Boundary:
        return x + self.queries, self.queries.detach().expand(BATCH, WIDTH)


class Gate(Unit):
    """``(x, q) -> (linear(x) * q,)``: the product keeps q, which is another stage's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, q: Tensor) -> Boundary:
        return (self.linear(x) * q,)


class Branch(Unit):
    """``(x,) -> (x1, x2)``, two linear maps."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.side = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Boundary:
        return self.main(x), self.side(x)


class IgnoreSide(Unit):
    """``(x1, x2) -> (linear(x1),)``"""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, side: Tensor) -> Boundary:
        return (self.linear(x),)


class FloatMask(Unit):
    """``(x,) -> (linear(x), mask)``, the mask of floating point and without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Boundary:
        return self.linear(x), (x > 0).to(x.dtype)


class FlagsThenBranch(Branch):
    """``(x,) -> (x1, flags, x2)``"""

    def forward(self, x: Tensor) -> Boundary:
        return self.main(x), x > 0, self.side(x)


class IgnoreBranch(IgnoreSide):
    """``(x1, flags, x2) -> (linear(x1),)``"""

    def forward(self, x: Tensor, flags: Tensor, side: Tensor) -> Boundary:
        return (self.linear(torch.where(flags, x, 0.0)),)


class Spare(Unit):
    """``(x,) -> (linear(x),)``, with a weight that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.spare = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Boundary:
        return (self.linear(x),)


class Tied(Unit):
    """``(x,) -> (W' tanh(W x),)``: one weight, used twice, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH, bias=False)
        self.down = nn.Linear(WIDTH, WIDTH, bias=False)
        self.down.weight = self.up.weight

    def forward(self, x: Tensor) -> Boundary:
        return (torch.tanh(self.up(x)) @ self.down.weight,)


class Packed(Unit):
    """``(x,) -> (x A B,)``, A and B parts of one allocation."""

    def __init__(self) -> None:
        super().__init__()
        flat = torch.randn(2, WIDTH, WIDTH) * 0.5
        self.a, self.b = nn.Parameter(flat[0]), nn.Parameter(flat[1])

    def forward(self, x: Tensor) -> Boundary:
        return (x @ self.a @ self.b,)


class Gaps(Unit):
    """``(x,) -> (x W,)``, W being every other column of something larger, used in two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter((torch.randn(WIDTH, 2 * WIDTH) * 0.5)[:, ::2])

    def forward(self, x: Tensor) -> Boundary:
        half = WIDTH // 2
        return (x[:, :half] @ self.weight[:half] + x[:, half:] @ self.weight[half:],)


class Transposed(Unit):
    """``(x,) -> (x W,)``, W stored column by column."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter((torch.randn(WIDTH, WIDTH) * 0.5).t())

    def forward(self, x: Tensor) -> Boundary:
        return (x @ self.weight,)


class ChannelsLast(Unit):
    """``(x,) -> (x + convolution of x,)``, the filter stored channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, (1, 3), padding=(0, 1)).to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Boundary:
        image = x.view(BATCH, 2, 1, WIDTH // 2)
        return (x + self.conv(image).reshape(x.shape),)


class Integers(Unit):
    """``(x,) -> (linear(x), flags, numbers)``: integers and booleans go along."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Boundary:
        return self.linear(x), x > 0, (x * 3).long()


class UseIntegers(Unit):
    """``(x, flags, numbers) -> (embedding[numbers] + linear(x) where flags,)``"""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.embedding = nn.Embedding(5, WIDTH)

    def forward(self, x: Tensor, flags: Tensor, numbers: Tensor) -> Boundary:
        found = self.embedding(numbers.remainder(5)).mean(1)
        return (found + torch.where(flags, self.linear(x), 0.0),)


dense, affine = partial(Dense, WIDTH, WIDTH), partial(Affine, WIDTH, WIDTH)

NETWORKS: dict[str, tuple[Network, Callable[[], object]]] = {
    "the gradients of a weight and of the boundary are one tensor": (
        network(dense, Shift, Shift, Shift, affine), Regression,
    ),
    "the gradients of two weights are one tensor": (
        network(dense, TwoShifts, TwoShifts, affine), Regression,
    ),
    "a gradient is one number expanded": (network(dense, dense, Shift, Shift), MeanOfOutput),
    "a view of a weight leaves its stage": (network(dense, Queries, Gate, affine), Regression),
    "a detached weight leaves its stage": (
        network(dense, DetachedQueries, Gate, affine), Regression,
    ),
    "a float mask that a unit leaves out": (
        network(dense, FloatMask, Gate, affine), Regression,
    ),
    "a float mask that a unit does not look at": (
        network(dense, FloatMask, IgnoreSide, affine), Regression,
    ),
    "a branch that the loss ignores": (network(dense, Branch, affine, affine), Regression),
    "a branch that nobody uses": (network(dense, Branch, IgnoreSide, affine), Regression),
    "a weight that nobody uses": (network(dense, Spare, dense, affine), Regression),
    "a weight used twice": (network(dense, Tied, Tied, affine), Regression),
    "weights in one allocation": (network(dense, Packed, Packed, affine), Regression),
    "a weight with gaps between its elements": (network(dense, Gaps, dense, affine), Regression),
    "a weight stored column by column": (network(dense, Transposed, dense, affine), Regression),
    "a filter stored channels last": (network(dense, ChannelsLast, dense, affine), Regression),
    "integers and flags cross a boundary": (
        network(dense, Integers, UseIntegers, affine), Regression,
    ),
}  # fmt: skip
MAY_BE_REFUSED = {
    "a view of a weight leaves its stage",
    "a detached weight leaves its stage",
    "a branch that nobody uses",
    "a branch that the loss ignores",
    "a weight with gaps between its elements",
}


@pytest.mark.parametrize("method", ["gpipe", "pipedream", "t1+t2", "hogwild"])
@pytest.mark.parametrize("name", NETWORKS)
def test_engines_agree_or_refuse(name: str, method: str) -> None:
    net, task = NETWORKS[name]
    job = make_job(net, task, method, stages=len(net), microbatches=3, steps=10, optimizer=sgd)
    try:
        expected = run_reference(job)
    except ValueError:  # refused by name: just as good
        assert name in MAY_BE_REFUSED
        with pytest.raises(ValueError, match="unit"):
            run_pipeline(job, 2)
        return
    assert expected.status == "finished"
    for workers in (1, 2):
        assert_same(run_pipeline(job, workers), expected)


def test_an_optimizer_that_changes_gradients_in_place() -> None:
    """Nesterov's momentum over lists of tensors does; with N = 1 a weight's gradient is the very
    tensor that goes upstream."""
    net, task = NETWORKS["the gradients of a weight and of the boundary are one tensor"]
    nesterov = partial(torch.optim.SGD, lr=0.02, momentum=0.9, nesterov=True, foreach=True)
    job = make_job(net, task, "t1+t2", stages=5, microbatches=1, steps=10, optimizer=nesterov)
    expected = run_reference(job)
    for workers in (1, 2):
        assert_same(run_pipeline(job, workers), expected)


@pytest.mark.parametrize(
    ("opening", "ignoring", "member"),
    [(Branch, IgnoreSide, 1), (FlagsThenBranch, IgnoreBranch, 2)],
    ids=["after a float", "after a flag"],
)
def test_a_member_of_a_boundary_that_is_ignored_is_named(
    opening: type[Unit], ignoring: type[Unit], member: int
) -> None:
    """No gradient comes back for it; zeros in its place would feed weight decay and momentum."""
    job = make_job(
        network(dense, opening, ignoring), Regression, "gpipe", stages=2, steps=1, optimizer=sgd
    )
    name = rf"unit 2 of test \({ignoring.__name__}\) ignores member {member} "
    with pytest.raises(ValueError, match=name):
        run_reference(job)


@pytest.mark.parametrize("stages", [1, 4])
@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in MAY_BE_REFUSED])
def test_synchronous_training_is_plain_training(name: str, stages: int) -> None:
    """Against a loop that uses neither engine: autograd's own .grad, one optimizer over all."""
    net, task = NETWORKS[name]
    job = make_job(
        net, task, "gpipe", stages=stages, microbatches=3, steps=6, optimizer=plain_sgd,
        dtype=torch.float64,
    )  # fmt: skip
    for found in (run_reference(job), run_pipeline(job, min(2, stages))):
        for a, b in zip(found.weights, plain_loop(job), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def plain_loop(job: Job) -> list[Tensor]:
    """The weights after training as everybody would write it."""
    task = job.task()
    units = [job.network.build(j, job.seed).to(job.dtype) for j in range(len(job.network))]
    weights = [w for unit in units for w in unit.parameters()]
    optimizer = job.optimizer(weights)
    for t in range(job.steps):
        optimizer.zero_grad()
        for m in range(t * job.microbatches, (t + 1) * job.microbatches):
            boundary, target = task.microbatch(m)
            for unit in units:
                boundary = unit(*boundary)
            (task.loss(boundary, target) / job.microbatches).backward()
        optimizer.step()
    return [w.detach() for w in weights]
