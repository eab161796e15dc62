"""The committed outcome is generated: CSV, text, and the README's block between its marks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reproduce.errors import BadInput
from reproduce.recorded import BEGIN, END, record
from reproduce.records import Records, read

from ..made import made, run

RUN = run("digits-resnet50", "t1", final=94.25, git_commit="0123456789abcdef")


def found(**columns: object) -> Records:
    return replace(made([RUN | columns]), table="embedded")


PLACES = "".join(
    f"{BEGIN.format(part=part, table='embedded')}\nold\n{END.format(part=part)}\n"
    for part in ("results", "claims")
)


def readme(root: Path, text: str) -> Path:
    path = root / "README.md"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_readme_and_the_recorded_files_say_the_same(tmp_path: Path) -> None:
    path = readme(tmp_path, f"before\n{PLACES}after\n")
    record(found(), root=tmp_path)
    text = path.read_text(encoding="utf-8")
    recorded = (tmp_path / "results/recorded/embedded.md").read_text(encoding="utf-8")
    assert recorded in text  # there is no sweep here
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "94.25" in recorded and "0123456789" in recorded and "made CPU, 2 cores" in recorded
    again = read(tmp_path / "results/recorded", "embedded")
    assert again.runs["cell"].tolist() == ["digits-resnet50/t1"]
    assert again.curves.equals(found().curves)
    assert text.count("| C3 | ") == 1
    assert "| C3 | " in (tmp_path / "results/recorded/claims.md").read_text(encoding="utf-8")
    record(found(), root=tmp_path)
    assert path.read_text(encoding="utf-8") == text


def test_uncommitted_code_is_told(tmp_path: Path) -> None:
    readme(tmp_path, PLACES)
    record(found(git_dirty="true"), root=tmp_path)
    assert "with changes" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_a_table_without_a_place_in_the_readme_is_recorded_beside_it(tmp_path: Path) -> None:
    path = readme(tmp_path, PLACES)
    written = record(replace(found(), table="search"), root=tmp_path)
    assert path.read_text(encoding="utf-8") == PLACES
    folder = tmp_path / "results/recorded"
    assert {folder / "search.csv", folder / "search.md"} <= set(written)
    assert not (folder / "claims.md").exists()


@pytest.mark.parametrize("text", [PLACES.partition("<!-- claims")[0], PLACES[len(PLACES) // 2 :]])
def test_a_readme_with_half_of_the_places_is_left_alone(tmp_path: Path, text: str) -> None:
    path = readme(tmp_path, text)
    with pytest.raises(BadInput, match=r"no place for (results|claims) of embedded"):
        record(found(), root=tmp_path)
    assert path.read_text(encoding="utf-8") == text
    assert not (tmp_path / "results").exists()


def test_what_a_recording_lacks_is_counted_where_it_is_read(tmp_path: Path) -> None:
    path = readme(tmp_path, PLACES)
    record(found(), unfinished=["a/t1 seed 1", "a/t2"], root=tmp_path)
    assert "Not in it: 2 runs" in path.read_text(encoding="utf-8")
    assert "`a/t1 seed 1`" in (tmp_path / "results/recorded/claims.md").read_text(encoding="utf-8")
