"""What the check of the documentation's site finds. `make docs` builds the site itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests import ROOT, site

GOOD = '<h1 id="top">One</h1><a href="two.html#in">two</a><a href="https://example.org/">out</a><a href="#top">up</a>'


def check_page(folder: Path, text: str = "", **files: str) -> list[str]:
    """What is wrong with a site of two pages, the first of which has some more text."""
    (folder / "one.html").write_text(GOOD + text)
    (folder / "two.html").write_text('<h2 id="in">Two</h2><img src="data:image/png;base64,AA">')
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_text(content)
    return [*site.find_problems(folder)]


def test_a_site_that_is_right(tmp_path: Path) -> None:
    script = 'x="http://www.w3.org/2000/svg"'
    assert check_page(tmp_path, '<script src="a.js"></script>', a_js=script, a_css="p{background:url(a.png)}") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('<a href="three.html">', "one.html: three.html leads to no file"),
        ('<a href="two.html#out">', "one.html: two.html#out leads to no heading"),
        ('<a href="#out">', "one.html: #out leads to no heading"),
        ('<img src="no.svg">', "one.html: no.svg leads to no file"),
        ('<script src="https://unpkg.com/a.js">', "one.html: https://unpkg.com/a.js is loaded from another host"),
        ('<link href="//fonts.example/a.css">', "one.html: //fonts.example/a.css is loaded from another host"),
    ],
)
def test_what_is_wrong_in_a_page(tmp_path: Path, text: str, said: str) -> None:
    assert check_page(tmp_path, text) == [said]


def test_what_a_script_or_a_style_would_load(tmp_path: Path) -> None:
    script = 'load("https://unpkg.com/mermaid/mermaid.js")'
    assert check_page(tmp_path, a_js=script, a_css="@import 'https://fonts.example/a.css'") != []
    (tmp_path / "a.css").unlink()
    assert check_page(tmp_path) == ["a.js: https://unpkg.com is on another host"]
    site.keep_to_this_host(tmp_path)
    assert check_page(tmp_path) == []


def test_every_page_is_in_the_navigation() -> None:
    """But for single decisions, which their list leads to."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    entries = [entry for section in nav for part in section.values() for entry in part]
    named = [next(iter(entry.values())) if isinstance(entry, dict) else entry for entry in entries]
    assert len(named) == len({*named})
    assert {*named} >= {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} | {"docs/rules.md"}
