"""The corpus of task `phrases`: German number, ordinal, date and unit phrases and their English.

Both sides are rendered from the same value by libraries: number words by `num2words`, the rest by
Babel from the Unicode CLDR. Every run seed sees the same corpus and the same held-out part.
"""

from __future__ import annotations

import datetime
import hashlib
import random
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Literal, NamedTuple

from babel import Locale
from babel.dates import format_date, format_skeleton, format_timedelta
from babel.units import format_unit
from num2words import num2words

Period = Literal["second", "minute", "hour", "day", "week"]

GERMAN, ENGLISH = Locale("de"), Locale("en")
SEED = 0
"""of the choice of values, not of a run"""
TEST_SHARE = 25
"""one target phrase in so many is held out"""

UNITS = {
    "area": ("hectare", "square-kilometer", "square-meter"),
    "concentr": ("percent",),
    "digital": ("gigabyte", "megabyte"),
    "duration": ("century", "decade", "hour", "minute", "month", "second", "week", "year"),
    "electric": ("ampere", "volt"),
    "energy": ("kilojoule", "kilowatt-hour"),
    "length": ("centimeter", "inch", "kilometer", "light-year", "meter", "mile", "millimeter"),
    "mass": ("gram", "kilogram", "pound", "tonne"),
    "power": ("horsepower", "kilowatt", "watt"),
    "speed": ("kilometer-per-hour", "knot", "meter-per-second"),
    "temperature": ("celsius", "kelvin"),
    "volume": ("cubic-meter", "liter", "milliliter"),
}
"""CLDR units by dimension; an identifier is `dimension-unit`."""

PERIODS: dict[Period, int] = {
    "second": 1,
    "minute": 60,
    "hour": 3600,
    "day": 86_400,
    "week": 604_800,
}
"""seconds"""

Renderer = Callable[[Locale], str]
"""A value's phrase in a language."""


class Pair(NamedTuple):
    source: str
    """German"""
    target: str
    """English"""


class Corpus(NamedTuple):
    """No source and no target of `test` is in `train`; the order is fixed."""

    train: tuple[Pair, ...]
    test: tuple[Pair, ...]


def _words(value: int, kind: str, locale: Locale) -> str:
    return str(num2words(value, to=kind, lang=locale.language))


def _unit(value: float, unit: str, locale: Locale) -> str:
    return format_unit(value, unit, "long", locale=locale)


def _date(day: datetime.date, style: str, locale: Locale) -> str:
    if style in ("long", "full"):
        return format_date(day, style, locale)
    return format_skeleton(style, day, locale=locale)


def _relative(seconds: int, period: Period, locale: Locale) -> str:
    delta = datetime.timedelta(seconds=seconds)
    return format_timedelta(delta, granularity=period, add_direction=True, locale=locale)


def _number_phrases(rng: random.Random) -> Iterator[Renderer]:
    for n in [*range(1000), *rng.sample(range(1000, 100_000), 1500)]:
        yield partial(_words, n, "cardinal")
    for n in [*range(1, 1000), *rng.sample(range(1000, 10_000), 400)]:
        yield partial(_words, n, "ordinal")
    # Outside 1100..1999 a German year reads like the number, and its English does not.
    for year in range(1100, 2000):
        yield partial(_words, year, "year")


def _date_phrases(rng: random.Random) -> Iterator[Renderer]:
    first = datetime.date(1900, 1, 1).toordinal()
    last = datetime.date(2099, 12, 31).toordinal()
    for style, count in {"full": 1500, "long": 1500, "yMMMM": 500, "yQQQQ": 300}.items():
        for ordinal in rng.sample(range(first, last + 1), count):
            yield partial(_date, datetime.date.fromordinal(ordinal), style)
    for day in range(366):
        yield partial(_date, datetime.date(2000, 1, 1) + datetime.timedelta(day), "MMMMd")
    for period, seconds in PERIODS.items():
        for count in range(1, 60):
            for sign in (1, -1):
                yield partial(_relative, sign * count * seconds, period)


def _unit_phrases(rng: random.Random) -> Iterator[Renderer]:
    for unit in (f"{dimension}-{name}" for dimension, names in UNITS.items() for name in names):
        for value in [1, *rng.sample(range(2, 1000), 29)]:
            yield partial(_unit, value, unit)
        for tenths in rng.sample(range(1, 1_000), 15):
            yield partial(_unit, tenths / 10, unit)


def _text(phrase: str) -> str:
    """`phrase` with plain single spaces (CLDR writes some that do not break)."""
    return " ".join(phrase.split())


def held_out(target: str) -> bool:
    """Whether phrases with this English belong to the test part: a fixed hash decides."""
    digest = hashlib.blake2b(target.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % TEST_SHARE == 0


@lru_cache(maxsize=1)
def corpus() -> Corpus:
    """All pairs, each source once.

    A source has one target (the first), and all sources of a target fall on the same side of the
    split, so neither side of a test pair is ever seen in training.
    """
    rng = random.Random(SEED)
    targets: dict[str, str] = {}
    for phrases in (_number_phrases, _date_phrases, _unit_phrases):
        for render in phrases(rng):
            targets.setdefault(_text(render(GERMAN)), _text(render(ENGLISH)))
    pairs = [Pair(*item) for item in targets.items()]
    return Corpus(
        tuple(pair for pair in pairs if not held_out(pair.target)),
        tuple(pair for pair in pairs if held_out(pair.target)),
    )
