"""The command as a user types it, on the real engines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_both_engines_give_the_same_weights(cli, table: Path, results: Path) -> None:
    run = ["run", "digits-resnet50/t1+t2", "--table", str(table), "--steps", "3", "--json", "-"]
    command = [sys.executable, "-m", "reproduce", *run]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    pipeline = json.loads(done.stdout)  # nothing else is on standard output
    reference = json.loads(cli(*run, "--engine", "reference").stdout)
    assert pipeline["weights_sha256"] == reference["weights_sha256"]
    assert pipeline["metric"] == reference["metric"]
    assert pipeline["memory"]["weights"] > 0
    assert 0 < pipeline["utilization"]["measured"] <= 1
    assert reference["utilization"]["measured"] is None
    assert (pipeline["workers"], reference["workers"]) == (2, 1)


def test_bad_input_shows_no_traceback(table: Path) -> None:
    command = [sys.executable, "-m", "reproduce", "run", "digits-resnet50/t9"]
    done = subprocess.run([*command, "--table", str(table)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: unknown cell 'digits-resnet50/t9'")
