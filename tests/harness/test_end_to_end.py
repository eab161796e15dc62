"""The command as a user types it, on the real engines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from data.translation import corpus_bleu
from reproduce.results import row
from reproduce.store import Store
from reproduce.tables import load


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


@pytest.mark.parametrize("engine", ["pipeline", "reference"])
def test_translations_are_kept_with_their_scores(cli, results: Path, engine: str) -> None:
    cell, limit = "phrases-transformer/t1+t2", ["--set", "evaluate_limit=24"]
    done = cli("run", cell, "--table", "smoke", "--engine", engine, *limit, "--json", "-")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    store = Store(load("smoke").name)
    run = store.client.get_run(found["mlflow_run_id"])
    file = store.client.download_artifacts(run.info.run_id, "hypotheses.txt")
    header, *lines = [line.split("\t") for line in Path(file).read_text("utf-8").splitlines()]
    assert header == ["source", "reference", "greedy", "beam"]
    _, references, greedy, beam = zip(*lines, strict=True)
    assert len(references) == 24
    scores = {
        "bleu_greedy": corpus_bleu(greedy, references),
        "bleu_beam": corpus_bleu(beam, references),
    }
    assert found["scores"] == scores
    assert found["metric"]["final"] == scores["bleu_greedy"]
    assert {key: row(run)[f"score_{key}"] for key in scores} == scores
