"""Task `digits`: 1797 real 8x8 scans of handwritten digits that ship with scikit-learn.

E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI repository, 1998 (its test
part). Five stratified folds are fixed once for all; the seed picks the one held out, so seeds 0..4
test every sample exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from data import checks
from data.order import AUGMENTATION, Order, generator
from data.task import Boundary, Microbatch, Task

FOLDS = 5
CLASSES = 10
CHANNELS = 1
SIDE = 8
"""pixels"""


class Part(NamedTuple):
    """Images float32 [n, 1, 8, 8], labels int64 [n]."""

    images: Tensor
    labels: Tensor


@lru_cache(maxsize=1)
def scans() -> Part:
    """All samples, pixels 0..16 divided by 16."""
    from sklearn.datasets import load_digits  # takes 1 s to import

    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels).float().view(-1, CHANNELS, SIDE, SIDE) / 16
    return Part(images, torch.from_numpy(labels).long())


@lru_cache(maxsize=1)
def splits() -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The (training, held-out) sample numbers for each held-out fold; the same for every seed."""
    from sklearn.model_selection import StratifiedKFold

    images, labels = scans()
    return list(StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(images, labels))


@lru_cache(maxsize=FOLDS)
def parts(fold: int) -> tuple[Part, Part]:
    """The training and the held-out part, less the mean pixel of the training part.

    Pixels then have zero mean and unit range.
    """
    images, labels = scans()
    train, test = splits()[fold]
    centred = images - images[train].mean()
    return Part(centred[train], labels[train]), Part(centred[test], labels[test])


@lru_cache(maxsize=4)
def shifts(seed: int, size: int, epoch: int) -> NDArray[np.int64]:
    """How far each sample moves down and right in `epoch`, -1..1 pixels, int64 [size, 2].

    Keyed by (seed, epoch, sample): a sample's shift does not depend on N.
    """
    return generator(seed, AUGMENTATION, epoch).integers(-1, 2, (size, 2))


class Digits(Task):
    """Task `digits` for one run: images [b, 1, 8, 8] float32 to 10 classes.

    Args:
        seed: picks the held-out fold (seed mod 5) and the data order.
        batch_size: B, samples a step.
        microbatches: N.
        augment: shift each training image by up to one pixel each way.
        label_smoothing: 0 <= ε < 1.

    Raises:
        ValueError: an argument is out of range (one line, with the mend).
    """

    name = "digits"
    metric = "accuracy"

    def __init__(
        self,
        seed: int,
        batch_size: int,
        microbatches: int,
        augment: bool = False,
        label_smoothing: float = 0.0,
    ) -> None:
        self.fold = seed % FOLDS
        self.order = Order(seed, len(self.train.labels), batch_size, microbatches)
        self.augment = augment
        self.label_smoothing = checks.label_smoothing(label_smoothing)

    # Tensors stay in the process-wide cache: an instance is small, and cheap to send to a worker.
    @property
    def train(self) -> Part:
        return parts(self.fold)[0]

    @property
    def test(self) -> Part:
        return parts(self.fold)[1]

    def microbatch(self, m: int) -> Microbatch:
        """Micro-batch m: inputs ([b, 1, 8, 8] float32,), target [b] int64."""
        samples = torch.from_numpy(self.order.samples(m))
        images = self.train.images[samples]
        if self.augment:
            images = self._shifted(images, m)
        return Microbatch((images,), self.train.labels[samples])

    def _shifted(self, images: Tensor, m: int) -> Tensor:
        order = self.order
        by = np.concatenate(
            [shifts(order.seed, order.size, epoch)[piece] for epoch, piece in order.pieces(m)]
        )
        top, left = torch.from_numpy(1 - by).unbind(1)  # a window further up moves the image down
        background = self.train.images.min().item()
        padded = F.pad(images, (1, 1, 1, 1), value=background)
        windows = padded.unfold(2, SIDE, 1).unfold(3, SIDE, 1)  # [b, 1, 3, 3, 8, 8], a view
        return windows[torch.arange(len(images)), :, top, left]

    def loss(self, outputs: Boundary, target: Tensor) -> Tensor:
        """Cross entropy of logits [b, 10], mean over the micro-batch."""
        return F.cross_entropy(outputs[0], target, label_smoothing=self.label_smoothing)

    @torch.no_grad()
    def evaluate(self, forward: Callable[[Boundary], Boundary]) -> float:
        """Accuracy on the held-out fold in percent, in one batch of about 360 images."""
        predicted = forward((self.test.images,))[0].argmax(1).cpu()
        return 100 * (predicted == self.test.labels).double().mean().item()

    def resolution(self) -> float:
        """One held-out sample, in percent."""
        return 100 / len(self.test.labels)
