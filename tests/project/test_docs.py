"""What the documentation names exists: files, headings, modules and tests. The README stays short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.project.test_imports import ROOMS

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "airflow_provider_cdc"
#: All but docs/rules.md, which is generated; tests/project/test_mutations.py checks what it names.
PAGES = [
    *ROOT.glob("*.md"),
    *(page for page in (ROOT / "docs").rglob("*.md") if page.name != "rules.md"),
    ROOT / "dags" / "README.md",
    ROOT / "docker" / "README.md",
]
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return re.sub(r"^```.*?^```$|^    \S.*?$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pages
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pages
def test_modules_that_are_named_exist(page: Path) -> None:
    for name in re.findall(r"`([a-z_]+(?:/[\w.-]+)*\.py)`", page.read_text()):
        assert any((place / name).exists() for place in (PACKAGE, ROOT, page.parent)), name


@pages
def test_tests_that_are_named_exist(page: Path) -> None:
    file = Path()
    for named, test in re.findall(r"`(?=tests/|::test_)(tests/[\w/]+\.py)?(?:::(\w+)[^`]*)?`", page.read_text()):
        file = ROOT / named if named else file
        assert not test or re.search(rf"^(?:async )?def {test}\(", file.read_text(), re.MULTILINE), f"{named}::{test}"


@pages
def test_lines_of_prose_are_wrapped(page: Path) -> None:
    lines = (line for line in prose(page).splitlines() if not line.startswith(("|", "#")))
    assert [line for line in lines if len(line) > 120] == []


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    assert "```mermaid" not in text, "PyPI does not render Mermaid"


def test_all_pages_are_listed() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    listed = set(re.findall(r"\]\((\w+\.md)\)", index))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"} == listed


def test_hooks_before_a_commit_need_no_network() -> None:
    """They run the tools of the environment that ``make setup`` has made."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert {repo["repo"] for repo in hooks} == {"local"}
    for hook in hooks[0]["hooks"]:
        assert hook["language"] == "system" and hook["entry"].startswith(".venv/bin/")


def rooms_in(text: str) -> list[str]:
    """The first column of the table of rooms."""
    table = text.partition("| Room | What is in it |")[2].partition("\n\n")[0]
    return [names(line.split("|")[1])[0] for line in table.splitlines()[2:]]


def names(text: str) -> list[str]:
    return re.findall(r"`([\w.]+)`", text)


def test_the_map_is_that_of_the_code() -> None:
    """CONTRIBUTING.md names every room, the one above before those that it may import."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert rooms_in(text) == [*reversed(ROOMS)]
