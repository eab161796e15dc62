"""The measured timeline: every pass once, one after another, and the result is the same.

Every pass sleeps for a known time, so what the timeline adds up to can be held against the
utilization that the engine counts by other means.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from functools import partial
from itertools import groupby, pairwise

import pytest
from core_cases import Regression, assert_same, dense, make_job, network
from test_utilization import PASS_S, Slow

from reproduce.engine import run_pipeline
from reproduce.job import Job, Outcome
from reproduce.trace import TraceEvent, common_start, to_chrome, to_csv

STAGES, N, STEPS = 4, 2, 5


def slow_job(method: str, **settings: object) -> Job:
    settings = {"stages": STAGES, "microbatches": N, "steps": STEPS, "trace": True, **settings}
    return make_job(network(*[partial(Slow, 6, 6)] * STAGES), Regression, method, **settings)


def of_worker(events: list[TraceEvent]) -> dict[int, list[TraceEvent]]:
    ordered = sorted(events, key=lambda event: (event.worker, event.start_s, event.end_s))
    return {rank: list(own) for rank, own in groupby(ordered, lambda event: event.worker)}


def check_complete(outcome: Outcome, workers: int, recomputed: range = range(0)) -> None:
    """Every F, B, R and U once, by the worker that owns the stage, one after another."""
    found = Counter((e.kind, e.stage, e.microbatch) for e in outcome.trace if e.kind != "W")
    stages, total = range(1, STAGES + 1), N * STEPS
    expected = [(kind, i, m) for kind in "FB" for i in stages for m in range(total)]
    expected += [("R", i, m) for i in recomputed for m in range(total)]
    expected += [("U", i, m) for i in stages for m in range(N - 1, total, N)]
    assert found == Counter(expected)
    timelines = of_worker(outcome.trace)
    assert set(timelines) == set(range(workers))
    own = {e.stage: e.worker for e in outcome.trace}
    assert all(own[e.stage] == e.worker for e in outcome.trace)
    for events in timelines.values():
        assert all(e.start_s <= e.end_s for e in events)
        assert all(a.end_s <= b.start_s for a, b in pairwise(events))
    when = {(e.kind, e.stage, e.microbatch): e for e in outcome.trace}
    for i in stages:
        for m in range(total):
            assert when["F", i, m].end_s <= when["B", i, m].start_s
            if i > 1:
                assert when["F", i - 1, m].end_s <= when["F", i, m].start_s
                assert when["B", i, m].end_s <= when["B", i - 1, m].start_s


@pytest.mark.parametrize(("method", "workers"), [("gpipe", 2), ("t1+t2+t3", 3), ("pipedream", 1)])
def test_every_pass_once_and_busy_time_is_utilization(method: str, workers: int) -> None:
    outcome = run_pipeline(slow_job(method, sync_steps=2), workers)
    check_complete(outcome, workers)
    busy = {
        rank: sum(e.end_s - e.start_s for e in events if e.kind != "W")
        for rank, events in of_worker(outcome.trace).items()
    }
    assert outcome.utilization is not None
    mean = sum(busy.values()) / workers / outcome.loop_s
    assert mean == pytest.approx(outcome.utilization, abs=0.05)
    passes = [e.end_s - e.start_s for e in outcome.trace if e.kind in "FB"]
    assert min(passes) >= PASS_S * 0.99
    assert outcome.trace[0].start_s == 0.0
    assert outcome.trace[-1].end_s <= outcome.loop_s + 0.1
    if workers == 1:
        assert not [e for e in outcome.trace if e.kind == "W"]


@pytest.mark.parametrize("method", ["t1", "gpipe"])
def test_recomputation_is_part_of_it(method: str) -> None:
    job = make_job(
        dense(STAGES), Regression, method, stages=STAGES, microbatches=N, steps=STEPS, segment=2,
        trace=True,
    )  # fmt: skip
    outcome = run_pipeline(job, 2)
    recomputed = sorted({e.stage for e in outcome.trace if e.kind == "R"})
    assert recomputed
    check_complete(outcome, 2, range(recomputed[0], recomputed[-1] + 1))


def test_the_result_is_the_same_with_and_without() -> None:
    with_it = make_job(dense(STAGES), Regression, "t1+t2", trace=True, eval_every=3)
    without = make_job(dense(STAGES), Regression, "t1+t2", eval_every=3)
    traced, plain = run_pipeline(with_it, 2), run_pipeline(without, 2)
    assert_same(traced, plain)
    assert (plain.trace, plain.texts) == ([], {})
    assert traced.texts.keys() == {"trace.csv", "trace.json"}


EVENTS = [
    TraceEvent(1, "F", 3, 7, 101.5, 101.75),
    TraceEvent(0, "W", 1, -1, 100.0, 100.5),
    TraceEvent(0, "U", 2, 3, 100.5, 100.500001),
]


def test_times_count_from_the_first_event() -> None:
    assert [(e.kind, e.start_s, e.end_s) for e in common_start(EVENTS)] == [
        ("W", 0.0, 0.5),
        ("U", 0.5, pytest.approx(0.500001)),
        ("F", 1.5, 1.75),
    ]
    assert common_start([]) == []


def test_csv_can_be_read_back() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(common_start(EVENTS)))))
    assert rows[1] == {
        "worker": "0", "kind": "U", "stage": "2", "microbatch": "3", "start_s": "0.500000",
        "end_s": "0.500001",
    }  # fmt: skip
    assert len(rows) == 3


def test_chrome_json() -> None:
    """What the trace event format asks of complete events (X) and of metadata (M)."""
    found = json.loads(json.dumps(to_chrome(common_start(EVENTS))))
    complete = [e for e in found["traceEvents"] if e["ph"] == "X"]
    metadata = [e for e in found["traceEvents"] if e["ph"] == "M"]
    assert len(complete) + len(metadata) == len(found["traceEvents"])
    for event in complete:
        assert event.keys() >= {"name", "cat", "ph", "ts", "dur", "pid", "tid"}
        assert all(isinstance(event[key], (int, float)) for key in ("ts", "dur"))
        assert all(isinstance(event[key], int) for key in ("pid", "tid"))
    assert complete[2] == {
        "name": "F7", "cat": "forward", "ph": "X", "ts": 1.5e6, "dur": 0.25e6, "pid": 0, "tid": 1,
        "args": {"stage": 3, "microbatch": 7},
    }  # fmt: skip
    assert complete[0]["name"] == "W"
    assert {(e["name"], e["tid"], e["args"]["name"]) for e in metadata} == {
        ("thread_name", 0, "worker 0"),
        ("thread_name", 1, "worker 1"),
    }
