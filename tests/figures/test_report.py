"""The report is one well-formed page that needs nothing beside itself."""

from __future__ import annotations

import base64
from html.parser import HTMLParser
from pathlib import Path

import pytest

from paper_figures import report
from paper_figures.report import Picture

from . import figure_cases as cases
from .figure_cases import R50, R152

VOID = {"meta", "img", "br", "link", "input", "hr", "source"}
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEANl9ngAAAAABJRU5ErkJggg=="
)
EVIL = '<script>alert("x")</script> & "quotes"'


class Page(HTMLParser):
    """Checks that elements nest, and collects what a test asks for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def pictures(tmp_path: Path) -> list[Picture]:
    png = tmp_path / "c1.png"
    png.write_bytes(PIXEL)
    return [
        Picture("c1", "Gaps and times.", png),
        Picture("curves", "Learning curves.", png),
        Picture("c5", "Activations.", None, "not drawn: table made has no sweep"),
    ]


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def test_claims_figures_runs_and_origin(pictures: list[Picture]) -> None:
    material = cases.full()
    page = Page(report.page(material, pictures))
    said = " ".join(" ".join(page.text).split())
    for claim in material.claims:
        assert claim.statement in said and str(claim.verdict) in said
        assert all(finding.measured in said for finding in claim.findings)
    assert "not drawn: table made has no sweep" in said
    assert {image["alt"] for image in page.all("img")} == {"Gaps and times.", "Learning curves."}
    assert "made CPU, 2 cores, 16 GiB" in said and "numpy 2.4.6" in said and "c0ffee" in said
    assert "make ui" in said
    row = next(row for row in page.rows if row[0] == f"{R50}/t1")
    assert row[:6] == [f"{R50}/t1", "0", "finished", "accuracy", "94.00", "94.00"]
    diverged = next(row for row in page.rows if row[0] == f"{R152}/t1")
    assert diverged[2] == "diverged" and diverged[4] == "–" and "90" in diverged
    ids = {row[-1] for row in page.rows}
    assert set(material.records.runs["mlflow_run_id"]) <= ids


def test_missing_cells_are_listed(pictures: list[Picture]) -> None:
    rows = [row for row in cases.grid() if row["method"] != "pipedream"]
    said = " ".join(Page(report.page(cases.material(rows), pictures)).text)
    assert "Runs of the table that are not finished" in said
    assert all(f"{R50}/pipedream seed {seed}" in said for seed in range(3))


def test_needs_nothing_from_elsewhere(pictures: list[Picture]) -> None:
    text = report.page(cases.full(), pictures)
    page = Page(text)
    assert "http://" not in text and "https://" not in text
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed")
        source = attributes.get("src")
        assert source is None or (tag == "img" and source.startswith("data:image/png;base64,"))
        target = attributes.get("href")
        assert target is None or target.startswith("#")
    assert "url(" not in text and "@import" not in text
    anchors = {attributes.get("id") for _, attributes in page.tags}
    assert all((link["href"] or "")[1:] in anchors for link in page.all("a"))


def test_texts_of_the_records_are_escaped(pictures: list[Picture]) -> None:
    rows = cases.grid([0])
    for row in rows:
        row["git_commit"] = row["cell"] = row["mlflow_run_id"] = EVIL
        row["metric"] = "<b>metric</b>"
    text = report.page(cases.material(rows), [Picture("c1", EVIL, None, EVIL)])
    page = Page(text)
    assert len(page.all("script")) == 1  # the sorting
    assert EVIL not in text and "<b>metric" not in text
    assert EVIL in " ".join(page.text)


def test_run_ids_lead_to_a_tracking_server(
    pictures: list[Picture], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example/")
    material = cases.full()
    page = Page(report.page(material, pictures))
    first = material.records.runs["mlflow_run_id"].iloc[0]
    links = {link["href"] for link in page.all("a")}
    assert f"https://mlflow.example/#/runs/{first}" in links


@pytest.mark.parametrize(
    "uri",
    ["https://user:pw@mlflow.example:81/base/", "https://user:pw@mlflow.example:81/base?token=pw"],
)
def test_no_password_on_the_page(
    uri: str, pictures: list[Picture], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is made to be sent; what the store is reached with is not."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert report.tracking_server() == "https://mlflow.example:81/base"
    text = report.page(cases.full(), pictures)
    assert "https://mlflow.example:81/base/#/runs/" in text
    assert "user:pw" not in text and "token" not in text


@pytest.mark.parametrize("uri", ["sqlite:///mlflow.db", "postgresql://host/db", "/a/folder"])
def test_a_database_is_no_link(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert report.tracking_server() == ""


def test_diverged_runs_and_no_sweeps(pictures: list[Picture]) -> None:
    rows = [row for row in cases.grid([0]) if row["status"] == "diverged"]
    page = Page(report.page(cases.material(rows), pictures))
    assert not any("of the sweeps" in text for text in page.text)
    assert len([row for row in page.rows if "diverged" in row]) == 2
    assert not any("nan" in cell.lower() for row in page.rows for cell in row)
