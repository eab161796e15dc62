"""Tasks and models as a table names them: their own settings, and what makes them.

A new task is a class here and a row in `TASKS`, a new model the same with `MODELS`;
`<task>-<model>` is then a network that any table may use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Any, ClassVar

from pydantic import Field

from data.digits import CHANNELS, CLASSES, SIDE, Digits
from data.task import Task
from models.resnet import Stem, resnet
from models.unit import Network
from reproduce.errors import BadInput, choose
from reproduce.settings import Fraction, Positive, Settings


@dataclass(frozen=True)
class Images:
    """What a model must know of a task on images."""

    classes: int
    channels: int
    side: int
    """pixels"""
    stem: Stem


@dataclass(frozen=True)
class Sentences:
    """What a model must know of a task on token sequences."""

    vocabulary: int
    max_length: int
    pad: int


class Workload(Settings):
    """All settings of a cell: the common ones, its task's and its model's."""

    gives: ClassVar[type]
    """What the task gives: Images or Sentences"""
    takes: ClassVar[type]
    """What the model takes"""

    def task(self) -> Callable[[], Task]:
        """What makes the task; picklable."""
        raise NotImplementedError

    def samples(self) -> Any:
        """An instance of `gives`."""
        raise NotImplementedError

    def network(self, samples: Any) -> Network:
        """The network for such samples. Raises ValueError for settings that make none."""
        raise NotImplementedError


class DigitsSettings(Workload):
    gives = Images

    augment: bool = False

    def task(self) -> Callable[[], Task]:
        return partial(
            Digits,
            self.seed,
            self.batch_size,
            self.microbatches,
            augment=self.augment,
            label_smoothing=self.label_smoothing,
        )

    def samples(self) -> Images:
        return Images(CLASSES, CHANNELS, SIDE, "cifar")


class PhrasesSettings(Workload):
    gives = Sentences

    vocabulary: Annotated[int, Field(ge=32)] = 400
    """sub-words of both languages together"""
    max_length: Annotated[int, Field(ge=4)] = 32
    """pieces; longer pairs are left out"""
    evaluate_limit: Positive | None = None
    """score the first so many test phrases only"""
    beam: Positive = 1
    """hypotheses kept by beam search in the final scoring; 1: greedy only"""

    def task(self) -> Callable[[], Task]:
        from data.phrases import Phrases  # its tokenizer and BLEU are slow to import

        return partial(
            Phrases,
            self.seed,
            self.batch_size,
            self.microbatches,
            vocabulary=self.vocabulary,
            max_length=self.max_length,
            label_smoothing=self.label_smoothing,
            evaluate_limit=self.evaluate_limit,
            beam=self.beam,
        )

    def samples(self) -> Sentences:
        from data.subwords import PAD

        return Sentences(self.vocabulary, self.max_length, PAD)


class ResNetSettings(Workload):
    takes = Images
    depth: ClassVar[int]

    width: Positive = 64
    """channels of the stem; 64 is the published size"""

    def network(self, samples: Images) -> Network:
        smallest = samples.side >> 3 if samples.stem == "cifar" else samples.side >> 5
        if smallest <= 1 and self.batch_size == self.microbatches:
            raise ValueError(
                "batch norm needs more than 1 sample a micro-batch; lower microbatches"
            )
        return resnet(self.depth, samples.classes, self.width, samples.stem, samples.channels)


class ResNet50Settings(ResNetSettings):
    depth = 50


class ResNet101Settings(ResNetSettings):
    depth = 101


class ResNet152Settings(ResNetSettings):
    depth = 152


class TransformerSettings(Workload):
    takes = Sentences

    dim: Positive = 512
    heads: Positive = 8
    feedforward: Positive = 2048
    encoder_layers: Positive = 6
    decoder_layers: Positive = 6
    dropout: Fraction = 0.1

    def network(self, samples: Sentences) -> Network:
        from models.transformer import transformer

        return transformer(
            samples.vocabulary,
            self.dim,
            self.heads,
            self.feedforward,
            self.encoder_layers,
            self.decoder_layers,
            self.dropout,
            max_length=samples.max_length,
            pad=samples.pad,
        )


TASKS: dict[str, type[Workload]] = {"digits": DigitsSettings, "phrases": PhrasesSettings}
MODELS: dict[str, type[Workload]] = {
    "resnet50": ResNet50Settings,
    "resnet101": ResNet101Settings,
    "resnet152": ResNet152Settings,
    "transformer": TransformerSettings,
}


@lru_cache
def workload(network: str) -> type[Workload]:
    """The settings class of `<task>-<model>`. Raises BadInput for an unknown or unfit pair."""
    task, _, model = network.partition("-")
    if task not in TASKS:
        raise BadInput(f"unknown task {task!r}; {choose(task, TASKS)}")
    if model not in MODELS:
        raise BadInput(f"unknown model {model!r}; {choose(model, MODELS)}")
    gives, takes = TASKS[task].gives, MODELS[model].takes
    if gives is not takes:
        fit = [name for name, row in MODELS.items() if row.takes is gives]
        raise BadInput(
            f"model {model!r} takes {takes.__name__.lower()} and task {task!r} gives "
            f"{gives.__name__.lower()}; {choose(model, fit)}"
        )
    return type(network, (TASKS[task], MODELS[model]), {"__module__": __name__})
