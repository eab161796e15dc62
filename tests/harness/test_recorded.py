"""The committed outcome is generated: CSV, text, and the README's block between its marks."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from reproduce.errors import BadInput
from reproduce.recorded import BEGIN, END, record

MACHINE = {"cpu": "Some CPU", "cores": 2, "memory_gib": 23.5, "gpus": []}
ROW = {
    "cell": "digits-resnet50/t1", "metric": "accuracy", "final": 94.25, "best": 95.0, "steps": 600,
    "wall_s": 90.0, "git_commit": "0123456789abcdef", "git_dirty": "false",
    "machine": json.dumps(MACHINE), "versions": json.dumps({"torch": "2.14.1"}),
}  # fmt: skip


def readme(root: Path, text: str) -> Path:
    path = root / "README.md"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_readme_and_the_recorded_files_say_the_same(tmp_path: Path) -> None:
    path = readme(tmp_path, f"before\n{BEGIN.format(table='embedded')}\nold\n{END}\nafter\n")
    record("embedded", [ROW], tmp_path)
    text = path.read_text(encoding="utf-8")
    recorded = (tmp_path / "results/recorded/embedded.md").read_text(encoding="utf-8")
    assert recorded in text
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "94.25" in recorded and "0123456789" in recorded and "Some CPU, 2 cores" in recorded
    with (tmp_path / "results/recorded/embedded.csv").open(encoding="utf-8") as file:
        assert [row["cell"] for row in csv.DictReader(file)] == ["digits-resnet50/t1"]
    record("embedded", [ROW], tmp_path)
    assert path.read_text(encoding="utf-8") == text


def test_uncommitted_code_is_told(tmp_path: Path) -> None:
    readme(tmp_path, f"{BEGIN.format(table='embedded')}{END}")
    record("embedded", [ROW | {"git_dirty": "true"}], tmp_path)
    assert "with changes" in (tmp_path / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "text", ["", BEGIN.format(table="embedded"), BEGIN.format(table="x") + END]
)
def test_a_readme_without_the_place_is_left_alone(tmp_path: Path, text: str) -> None:
    path = readme(tmp_path, text)
    with pytest.raises(BadInput, match="no place for embedded"):
        record("embedded", [ROW], tmp_path)
    assert path.read_text(encoding="utf-8") == text
    assert not (tmp_path / "results").exists()
