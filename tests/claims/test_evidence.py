"""What the evidence computes, against numbers worked out by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
import pytest
from scipy import stats

from reproduce.claims import evidence
from reproduce.claims.depths import regime

from ..made import MACHINE, WEIGHTS, made, run

R50, R152, PHRASES = "digits-resnet50", "digits-resnet152", "phrases-transformer"
SEEDS = range(3)


def only(frame: pd.DataFrame, **columns: Any) -> Mapping[str, Any]:
    """The one row with these values."""
    for key, value in columns.items():
        frame = frame[frame[key] == value]
    (row,) = frame.to_dict("records")
    return row


def test_quality_over_seeds() -> None:
    records = made([run(R50, "t1", s, final=94.0 + s) for s in SEEDS])
    found = only(evidence.quality(records))
    assert (found["n"], found["diverged"], found["mean"]) == (3, 0, 95.0)
    assert (found["low"], found["high"]) == (94.0, 96.0)
    assert found["resolution"] == pytest.approx(100 / 360)
    assert found["runs"] == tuple(records.runs["mlflow_run_id"])


def test_one_diverged_seed_leaves_no_mean() -> None:
    runs = [run(R50, "t1", 0, final=94.0), run(R50, "t1", 1, diverged_at=30)]
    found = only(evidence.quality(made(runs)))
    assert (found["n"], found["diverged"]) == (2, 1)
    assert math.isnan(found["mean"])


def test_gaps_are_paired_by_seed() -> None:
    """The seeds differ by 10 points and the methods by 1: pairs see the 1 alone."""
    gpipe = [run(R50, "gpipe", s, final=70.0 + 10 * s) for s in (2, 0, 1)]
    found = only(
        evidence.gaps(made([*gpipe, *(run(R50, "t1", s, final=69.0 + 10 * s) for s in SEEDS)]))
    )
    assert (found["mean"], found["low"], found["high"], found["n"]) == (1.0, 1.0, 1.0, 3)
    assert found["spread"] == pytest.approx(0.0, abs=1e-9)
    assert (found["baseline_final"], found["final"]) == (80.0, 79.0)


def test_finals_beside_a_gap_are_of_its_pairs() -> None:
    """`gap 1.00, gpipe 95, t1 80` would be no gap of 1: the seed that only T1 has is not in it."""
    t1 = [run(R50, "t1", s, final=94.0 if s < 3 else 38.0) for s in range(4)]
    found = only(evidence.gaps(made([*(run(R50, "gpipe", s, final=95.0) for s in SEEDS), *t1])))
    assert (found["n"], found["mean"], found["final"]) == (3, 1.0, 94.0)


def test_gaps_spread_is_students() -> None:
    gpipe = [run(R50, "gpipe", s, final=95.0) for s in SEEDS]
    t1 = [run(R50, "t1", s, final=94.0 - s) for s in SEEDS]
    found = only(evidence.gaps(made([*gpipe, *t1])))
    low, high = stats.t.interval(0.95, 2, loc=2.0, scale=1.0 / math.sqrt(3))
    assert found["spread"] == pytest.approx((high - low) / 2)
    assert (found["low"], found["high"]) == (1.0, 3.0)


def test_sampling_error_is_that_of_all_folds_together() -> None:
    """At 95% of 1080 samples one standard error of a difference is 0.94 points."""
    runs = [run(R50, method, s, final=95.0) for method in ("gpipe", "t1") for s in SEEDS]
    found = only(evidence.gaps(made(runs)))
    share = (0.95 * 1080 + 2) / 1084
    assert found["sampling"] == pytest.approx(
        100 * 1.96 * math.sqrt(2 * share * (1 - share) / 1084), rel=1e-3
    )
    assert found["sampling"] == pytest.approx(1.96 * 0.94, rel=0.03)


def test_no_sampling_error_for_bleu() -> None:
    runs = [run(PHRASES, method, s) for method in ("gpipe", "t1") for s in SEEDS]
    assert only(evidence.gaps(made(runs)))["sampling"] == 0.0


def test_gaps_need_the_baseline() -> None:
    assert evidence.gaps(made([run(R50, "t1")])).empty
    assert evidence.gaps(made([run(R50, "gpipe")])).empty


def test_gaps_leave_sweeps_out() -> None:
    runs = [run(R50, "gpipe"), run(R50, "t1", variant="cuts:stages=4")]
    assert evidence.gaps(made(runs)).empty


def test_time_to_target() -> None:
    """P = 107, N = 8: a synchronous step takes 14.25 steps of a full pipeline."""
    runs = [
        run(R50, "gpipe", curve={100: 50.0, 200: 90.0, 600: 80.0}),
        run(R50, "t1", curve={100: 50.0, 200: 60.0, 300: 95.0}),
        run(R50, "t1+t2+t3", curve={100: 60.0, 200: 89.9, 300: 90.0}),
    ]
    found = evidence.time_to_target(made(runs))
    gpipe, t1, t3 = (only(found, method=m) for m in ("gpipe", "t1", "t1+t2+t3"))
    assert (gpipe["steps"], t1["steps"], t3["steps"]) == (200, 300, 300)
    assert gpipe["time_stages"] == pytest.approx(200 * 14.25)
    assert t1["time_stages"] == pytest.approx(300)
    assert t3["time_stages"] == pytest.approx(100 * 14.25 + 200)
    assert t3["utilization_stages"] == pytest.approx(300 / (100 * 14.25 + 200))
    assert t1["speedup_stages"] == pytest.approx(200 * 14.25 / 300)
    assert t1["time_workers"] == pytest.approx(300 / 0.95)
    assert t1["seconds"] == pytest.approx(300 * 110 / 600)
    assert t1["speedup_low"] == pytest.approx(100 * 14.25 / 300)
    assert t1["speedup_high"] == pytest.approx(200 * 14.25 / 200)


def test_the_clock_where_only_some_records_have_the_loops_time() -> None:
    """Older runs have no loop_s: the whole run's time stands in for it."""
    runs = [
        run(R50, "gpipe", wall_s=240.0, loop_s=None),
        run(R50, "t1", wall_s=120.0, loop_s=60.0),
    ]
    found = evidence.time_to_target(made(runs))
    assert only(found, method="gpipe")["seconds"] == pytest.approx(240)
    assert only(found, method="t1")["speedup_seconds"] == pytest.approx(4)


def test_speedups_are_of_the_seeds_that_both_have() -> None:
    gpipe = [run(R50, "gpipe", s, curve={100 * (s + 1): 95.0}) for s in (0, 1)]
    t1 = [run(R50, "t1", s, curve={100 * s: 95.0}) for s in (1, 2, 3)]
    found = only(evidence.time_to_target(made([*gpipe, *t1])), method="t1")
    assert (found["n"], found["pairs"]) == (3, 1)
    assert found["speedup_stages"] == pytest.approx(200 * 14.25 / 100)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"set_workers": 4}, "workers = 2 and 4"),
        ({"machine": json.dumps(MACHINE | {"cpu": "other CPU"})}, "machine = made CPU, 2 cores, "
         "16 GiB and other CPU, 2 cores, 16 GiB"),
    ],
)  # fmt: skip
def test_nothing_measured_is_compared_across_machines(other: dict[str, Any], told: str) -> None:
    """Four workers for one row and two for the other say nothing of the methods."""
    records = made([run(R50, "gpipe"), run(R50, "t1", **other)])
    used = only(evidence.utilization(records), method="t1")
    assert used["placed"] == told
    assert math.isnan(used["over_measured"]) and used["over_stages"] == pytest.approx(14.25)
    timed = only(evidence.time_to_target(records), method="t1")
    assert timed["placed"] == told
    assert math.isnan(timed["speedup_workers"]) and math.isnan(timed["speedup_seconds"])
    assert timed["speedup_stages"] == pytest.approx(14.25)


def test_time_to_another_target_is_no_comparison() -> None:
    records = made([run(R50, "gpipe"), run(R50, "t1", set_target=80.0)])
    found = only(evidence.time_to_target(records), method="t1")
    assert found["differ"] == "target = 90 and 80"
    assert math.isnan(found["speedup_stages"])


def test_time_to_a_target_inside_the_warm_up() -> None:
    """Not amortised over steps that come after the target."""
    found = evidence.time_to_target(made([run(R50, "t1+t2+t3", curve={50: 90.0, 600: 95.0})]))
    assert only(found)["time_stages"] == pytest.approx(50 * 14.25)


def test_target_never_reached() -> None:
    runs = [
        run(R50, "gpipe", 0),
        run(R50, "t1", 0, final=89.0),
        run(R50, "async", 0, curve={10: 95.0}, diverged_at=30),
        run(R50, "pipedream", 0, final=95.0),
        run(R50, "pipedream", 1, final=50.0),
    ]
    found = evidence.time_to_target(made(runs))
    for method, n, reached in (("t1", 1, 0), ("async", 1, 0), ("pipedream", 2, 1)):
        row = only(found, method=method)
        assert (row["n"], row["reached"]) == (n, reached)
        assert math.isnan(row["steps"]) and math.isnan(row["speedup_stages"])


def test_no_target_no_rows() -> None:
    assert evidence.time_to_target(made([run(R50, "t1", set_target=None)])).empty


def test_one_device_has_no_bubble() -> None:
    runs = [
        run("digits-tiny", method, set_stages=1, utilization_model_stages=1.0, final=95.0)
        for method in ("gpipe", "t1")
    ]
    found = evidence.time_to_target(made(runs))
    assert found["speedup_stages"].tolist() == [1.0, 1.0]


def test_the_papers_utilization() -> None:
    """4.6 is what a tenth of synchronous steps makes of (N+P-1)/N = 7.625."""
    u = 16 / (16 + 106)
    plan = {"set_microbatches": 16, "set_stages": 107}
    runs = [
        run(R50, "gpipe", utilization_model_stages=u, **plan),
        run(R50, "t1", utilization_model_stages=1.0, **plan),
        run(R50, "t1+t2+t3", utilization_model_stages=1 / (0.1 / u + 0.9), **plan),
    ]
    found = evidence.utilization(made(runs))
    assert only(found, method="t1")["over_stages"] == pytest.approx(7.625)
    assert only(found, method="t1+t2+t3")["over_stages"] == pytest.approx(4.6, abs=0.05)
    assert only(found, method="t1")["over_measured"] == pytest.approx(0.95 / 0.8)


def test_memory_counts_no_gradients() -> None:
    runs = [run(PHRASES, method) for method in ("gpipe", "t1+t2")]
    runs.append(run(PHRASES, "pipedream", 0, memory_stash=5 * WEIGHTS))
    runs.append(run(PHRASES, "pipedream", 1, memory_stash=9 * WEIGHTS, diverged_at=9))
    found = evidence.memory(made(runs))
    totals = {row["method"]: row["total"] / WEIGHTS for _, row in found.iterrows()}
    assert totals == {"gpipe": 3.0, "t1+t2": 4.0, "pipedream": 8.0}
    both = only(found, method="t1+t2")
    assert (both["pipedream_over"], both["over_gpipe"]) == (2.0, pytest.approx(4 / 3))
    assert both["optimizer"] == "adamw"
    assert only(evidence.memory(made([run(R50, "t1")])))["optimizer"] == "sgd with momentum 0.9"


@pytest.mark.parametrize("ended", [{"diverged_at": 8}, {"steps": 10}])
def test_no_memory_of_a_pipeline_that_never_filled(ended: dict[str, int]) -> None:
    """93 stages take 186 micro-batches, 12 steps of 16: before, PipeDream stashes less."""
    runs = [run(PHRASES, "t1+t2"), run(PHRASES, "pipedream", memory_stash=1, **ended)]
    found = evidence.memory(made(runs))
    assert found["method"].tolist() == ["t1+t2"]
    assert math.isnan(only(found)["pipedream_over"])


def test_memory_under_another_optimizer_is_no_comparison() -> None:
    found = evidence.memory(made([run(R50, "pipedream", set_optimizer="adam"), run(R50, "t1")]))
    assert only(found, method="t1")["pipedream_differ"] == "optimizer = adam and sgd"
    assert math.isnan(only(found, method="t1")["pipedream_over"])


def test_memory_without_pipedream() -> None:
    assert math.isnan(only(evidence.memory(made([run(R50, "t1")])))["pipedream_over"])


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("depth:stages=50,lr=0.005,batch_size=64", "lr=0.005,batch_size=64"),
        ("depth:lr=0.005,stages=50", "lr=0.005"),
        ("depth:stages=50,betas=[0.9, 0.98]", "betas=[0.9, 0.98]"),
        ("depth:stages=50", ""),
    ],
)
def test_regime_is_all_but_the_depth(variant: str, expected: str) -> None:
    assert regime(variant) == expected


def deep(p: int, method: str, lr: float = 0.01, **given: Any) -> dict[str, Any]:
    return run(R152, method, variant=f"depth:stages={p},lr={lr}", set_stages=p, **given)


def test_regimes() -> None:
    runs = [
        deep(10, "t1"), deep(10, "t1+t2"),
        deep(50, "t1", diverged_at=40), deep(50, "t1+t2"),
        deep(150, "t1", diverged_at=30), deep(150, "t1+t2"),
        deep(10, "t1", 0.001), deep(150, "t1", 0.001), deep(150, "t1+t2", 0.001),
    ]  # fmt: skip
    depths = evidence.depth(made(runs))
    assert only(depths, stages=50, method="t1")["diverged_at"] == 40
    found = evidence.regimes(depths)
    high, low = only(found, regime="lr=0.01"), only(found, regime="lr=0.001")
    assert (high["shallowest"], high["deepest"], high["needed_from"]) == (10, 150, 50)
    assert (high["t1_shallow"], high["t1_deep"], high["t2_deep"]) == (0, 1, 0)
    assert (low["shallowest"], low["deepest"]) == (150, 150), "both methods are at 150 alone"
    assert math.isnan(low["needed_from"])
    assert (high["ended"], high["learnt"], high["steps"]) == (4, 4, 600)


def test_a_regime_without_a_depth_in_common_is_told() -> None:
    """Half a regime is not no regime."""
    found = only(evidence.regimes(evidence.depth(made([deep(10, "t1"), deep(50, "t1+t2")]))))
    assert (found["deepest"], found["n"]) == (0, 1)


def test_what_a_short_run_learnt() -> None:
    runs = [deep(10, "t1", steps=60, final=12.0), deep(10, "t1+t2", steps=60, final=12.0)]
    found = only(evidence.regimes(evidence.depth(made(runs))))
    assert (found["ended"], found["learnt"], found["steps"]) == (2, 0, 60)


def test_approximation() -> None:
    def stages(ratio: float) -> list[dict[str, float]]:
        row = {"tau_fwd": 1.0, "tau_bkwd": 0.0, "t2_distance": 0.5}
        return [{"stage": 1, "t2_ratio": ratio, **row}, {"stage": 2, "t2_ratio": math.nan, **row}]

    runs = [
        run(R152, "t1+t2", s, variant="approximation:stages=2", set_stages=2, stages=stages(r))
        for s, r in enumerate((0.4, 0.6))
    ]
    found = only(evidence.approximation(made(runs)))
    assert (found["stages"], found["stage"], found["n"]) == (2, 1, 2)
    assert found["ratio"] == pytest.approx(0.5)


def grown(
    p: int, size: float, segment: int = 0, method: str = "t1", **given: Any
) -> dict[str, Any]:
    variant = f"activations:stages={p},segment={segment}"
    told = {"set_stages": p, "units": p, "set_segment": segment} | given
    return run(PHRASES, method, variant=variant, memory_activations_peak=size, **told)


def test_exponents() -> None:
    kept = [grown(p, 10 * p**2) for p in (16, 36, 64)]
    recomputed = [grown(p, 10 * p**1.5, math.isqrt(p)) for p in (16, 36, 64)]
    found = evidence.exponents(evidence.activations(made([*kept, *recomputed])))
    for recompute, expected in ((False, 2.0), (True, 1.5)):
        fit = only(found, recompute=recompute)
        assert (fit["exponent"], fit["n"]) == (pytest.approx(expected), 3)
        assert fit["scale"] == pytest.approx(10)


def test_exponents_are_of_one_method_and_batch() -> None:
    """GPipe's bounded activations beside T1's would halve the exponent of their mean."""
    t1 = [grown(p, 10 * p**2) for p in (16, 36, 64)]
    gpipe = [grown(p, 20_000, method="gpipe") for p in (16, 36, 64)]
    large = [grown(p, 80 * p**2, set_batch_size=1024) | {"mlflow_run_id": f"{p}"} for p in (16, 36)]
    found = evidence.exponents(evidence.activations(made([*t1, *gpipe, *large])))
    assert len(found) == 2, "two depths of the large batch are no fit"
    assert only(found, method="t1")["exponent"] == pytest.approx(2.0)
    assert only(found, method="gpipe")["exponent"] == pytest.approx(0.0, abs=1e-9)
    assert found.set_index("method")["flushes"].to_dict() == {"t1": False, "gpipe": True}


@pytest.mark.parametrize("ended", [{"diverged_at": 8}, {"steps": 7}])
def test_no_activations_of_a_pipeline_that_never_filled(ended: dict[str, int]) -> None:
    """64 stages take 128 micro-batches, 8 steps of 16."""
    found = evidence.activations(made([grown(64, 1.0, **ended), grown(36, 36.0**2)]))
    assert found["stages"].tolist() == [36]


def test_approximation_is_of_one_method() -> None:
    runs = [
        run(R152, method, variant="approximation:stages=2", stages=[{"stage": 1, "t2_ratio": r}])
        for method, r in (("t1+t2", 0.2), ("t1", 1.0))
    ]
    found = evidence.approximation(made(runs))
    assert found.set_index("method")["ratio"].to_dict() == {"t1+t2": 0.2, "t1": 1.0}


def test_exponents_take_one_layer_a_stage_and_segments_near_the_root_only() -> None:
    coarse = [grown(p, p**2, units=200) for p in (16, 36, 64)]
    long = [grown(p, p**1.5, segment=p) for p in (16, 36, 64)]
    found = evidence.activations(made([*coarse, *long]))
    assert len(found) == 6 and not found["fits"].any()
    assert evidence.exponents(found).empty


def test_exponents_take_three_depths() -> None:
    assert evidence.exponents(evidence.activations(made([grown(4, 16), grown(8, 64)]))).empty


def test_throughput_is_that_of_the_loop() -> None:
    cut = run(R50, "t1", variant="cuts:stages=4", set_stages=4, loop_s=60.0, wall_s=100.0)
    old = run(R50, "t1", variant="cuts:stages=8", set_stages=8, loop_s=None, wall_s=100.0)
    found = evidence.throughput(made([cut, old]))
    assert found["samples_per_s"].tolist() == [600 * 64 / 60, 600 * 64 / 100]


def test_throughput_is_of_one_batch_size_and_machine() -> None:
    def cut(p: int, batch: int, **given: Any) -> dict[str, Any]:
        variant = f"cuts:stages={p},batch_size={batch}"
        told = {"set_stages": p, "set_batch_size": batch, "loop_s": 60.0} | given
        return run(R50, "t1", variant=variant, **told)

    found = evidence.throughput(made([cut(4, 64), cut(4, 128)]))
    assert found.set_index("batch_size")["samples_per_s"].to_dict() == {64: 640.0, 128: 1280.0}
    elsewhere = {"machine": json.dumps(MACHINE | {"cores": 64})}
    mixed = evidence.throughput(made([cut(4, 64), cut(8, 64, **elsewhere)]))
    assert mixed["samples_per_s"].isna().all() and "64 cores" in mixed["placed"].iloc[0]


def test_measured_delays() -> None:
    records = made([run(R50, "hogwild-lockfree", delays={0: 3, 2: 1}), run(R50, "t1")])
    found = only(evidence.measured_delays(records))
    assert (found["mean"], found["largest"], found["samples"]) == (0.5, 2, 4)


def test_records_without_anything_but_other_sweeps() -> None:
    records = made([run(R50, "t1", variant="other:lr=0.1")])
    for compute in (evidence.quality, evidence.gaps, evidence.time_to_target, evidence.memory,
                    evidence.depth, evidence.approximation, evidence.activations,
                    evidence.throughput, evidence.utilization,
                    evidence.measured_delays):  # fmt: skip
        assert compute(records).empty
    assert evidence.regimes(evidence.depth(records)).empty
    assert evidence.exponents(evidence.activations(records)).empty


def test_pipemare_is_t3_where_a_network_has_it() -> None:
    records = made([run(R50, "t1+t2"), run(R50, "t1+t2+t3"), run(R152, "t1+t2")])
    assert evidence.networks(records) == [R50, R152]
    assert evidence.pipemare(records, R50) == "t1+t2+t3"
    assert evidence.pipemare(records, R152) == "t1+t2"


def test_pipemare_is_the_tables_row_before_it_is_finished() -> None:
    """Else an unfinished T3 would let T1+T2 stand in for it, now and not later."""
    records = made([run(R50, "t1+t2")])
    cells = [f"{R50}/t1+t2", f"{R50}/t1+t2+t3", f"{R152}/gpipe", f"{R152}@depth:stages=2/t1+t2+t3"]
    assert evidence.pipemare(records, R50, cells) == "t1+t2+t3"
    assert evidence.pipemare(records, R152, cells) == "t1+t2"
    assert evidence.networks(records, cells) == [R50, R152]
