"""What the documentation names exists: files, headings, modules and tests. The README stays short."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from airflow_provider_cdc.cli.base import cli
from tests.project.test_imports import ROOMS
from tests.support.generated import held_by

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "airflow_provider_cdc"
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
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
def test_no_heading_twice(page: Path) -> None:
    """Links could only lead to the first one; and a section that was pasted twice shows."""
    headings = re.findall(r"^#+ .*$", prose(page), re.MULTILINE)
    assert sorted(headings) == sorted(set(headings))


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
    lines = (line for line in prose(page).splitlines() if not line.startswith(("|", "#", "<")))
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


#: How the parts that tests write are written again.
WRITE = "CDC_WRITE_DOCS=1 .venv/bin/python -m pytest tests/project/test_docs.py writes it"


def test_the_picture_has_every_room_above_those_that_it_may_import() -> None:
    picture = (ROOT / "docs" / "architecture.md").read_text().partition("<!-- picture -->")[2].split("```")[1]
    assert [word for word in re.findall(r"[\w.]+", picture) if word in ROOMS] == [*reversed(ROOMS)]


def room_description(room: str) -> str:
    """The docstring of a room's package, with names as Markdown has them."""
    text = ast.get_docstring(ast.parse((PACKAGE / room.replace(".", "/") / "__init__.py").read_text())) or ""
    return re.sub(r":\w+:`[.~]?(?:[\w.]+\.)?(\w+)`", r"``\1``", text)


def test_rooms_are_told_as_their_packages_tell_them() -> None:
    rows = [f"| `{room}` | {' '.join(room_description(room).replace('``', '`').split())} |" for room in reversed(ROOMS)]
    assert held_by("docs/architecture.md", "rooms", ["| Room | What it does |", "|---|---|", *rows]), WRITE


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_does(room: str) -> None:
    assert 8 <= len(room_description(room).splitlines()) <= 15


def command_rows() -> Iterator[str]:
    """Of each command, what its own help says."""
    sections = re.findall(r"^## (.*)$", (ROOT / "docs" / "cli.md").read_text(), re.MULTILINE)
    homes = {name: [section for section in sections if name in section.split(", ")] for name in cli.commands}
    for name, (section,) in sorted(homes.items(), key=lambda home: sections.index(home[1][0])):
        command = cli.commands[name]
        options = [
            f"`{option.opts[-1]}` {option.help}"
            for option in command.params
            if isinstance(option, click.Option) and option.opts[0] not in ("-f", "--pipeline")
        ]
        anchor = section.replace(",", "").replace(" ", "-")
        yield f"| [`{name}`](#{anchor}) | {command.help} | {'<br>'.join(options)} |"


def test_every_command_is_told_as_its_help_tells_it() -> None:
    head = ("| Command | What it does | Options |", "|---|---|---|")
    assert held_by("docs/cli.md", "commands", [*head, *command_rows()]), WRITE
