"""`python -m reproduce bench --quick`: every key, interleaved, judged by no time or ratio."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from reproduce.__main__ import app

ROOT = Path(__file__).parents[2]
KEYS = [
    "async_utilization",
    "async_over_gpipe_n1",
    "async_over_gpipe_n2",
    "async_over_gpipe_n4",
    "gpipe_over_torch",
    "gpipe_over_torchgpipe",
    "async_over_plain_two_threads",
    "reference_over_plain",
    "stages150_over_stages2",
    "t1t2_over_async",
    "gpipe_utilization_n1",
    "gpipe_utilization_n2",
    "gpipe_utilization_n4",
]


@pytest.fixture(scope="module")
def completed() -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "reproduce", "bench", "--quick", "--json", "-"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def found(completed: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Standard output holds the JSON and nothing else."""
    assert completed.returncode == 0, completed.stderr
    loaded: dict[str, Any] = json.loads(completed.stdout)
    return loaded


@pytest.mark.parametrize("key", KEYS)
def test_a_key_holds_a_number_or_says_why_not(found: dict[str, Any], key: str) -> None:
    if found[key] is None:
        assert key == "gpipe_over_torchgpipe"
        assert "pip install" in found["reasons"][key]
    else:
        assert found[key] > 0
        around = found["spread"][key]
        assert around["min"] <= around["q1"] <= around["median"] <= around["q3"] <= around["max"]
        assert len(around["values"]) == found["workload"]["rounds"]
    assert found["meaning"][key]


@pytest.mark.parametrize("n", [1, 2, 4])
def test_utilization_stands_beside_its_model(found: dict[str, Any], n: int) -> None:
    key = f"gpipe_utilization_n{n}"
    model = found[f"{key}_model"]
    assert model == pytest.approx(n / (n + 1), abs=1e-5)
    assert found[f"{key}_deviation"] == pytest.approx(found[key] / model - 1, abs=1e-4)


def test_pairs_are_interleaved(found: dict[str, Any]) -> None:
    """In each group every round runs everything once, in the order opposite to the last one's."""
    for group, of_group in groupby(found["runs"], key=lambda run: run["group"]):
        rounds = [
            [run["contestant"] for run in of_round]
            for _, of_round in groupby(of_group, key=lambda run: run["round"])
        ]
        assert len(rounds) == found["workload"]["rounds"] > 1, group
        assert all(len(set(names)) == len(names) > 1 for names in rounds)
        assert all(a == b[::-1] for a, b in pairwise(rounds)), group
    assert len({run["group"] for run in found["runs"]}) == 5


def test_a_reader_can_judge_it(found: dict[str, Any]) -> None:
    assert found["quick"] is True
    assert found["machine"]["cpu"] and found["machine"]["cores"] >= 1
    assert found["versions"]["torch"]
    assert {"workers", "wide", "deep", "samples", "microbatches", "stages"} <= set(
        found["workload"]
    )
    assert found["seconds_per_microbatch"]["n4/torch_1f1b"]["median"] > 0


def test_the_table_and_the_progress_go_to_standard_error(
    completed: subprocess.CompletedProcess[str], found: dict[str, Any]
) -> None:
    assert all(key in completed.stderr for key in KEYS)
    runs = len(found["runs"])
    assert f"[{runs}/{runs}, 0:00 left]" in completed.stderr


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    target = tmp_path / "missing" / "bench.json"
    result = CliRunner().invoke(app, ["bench", "--quick", "--json", str(target)])
    assert result.exit_code == 2
    assert str(target) in result.stderr.replace("\n", "")
