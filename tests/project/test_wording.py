"""The package speaks plain English: words and phrases that readers stumbled over do not come back."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests import ROOT

#: A phrase that is refused, and what to write instead.
REFUSED = {
    r"anew": "again, or from the beginning",
    r"beside": "alongside, next to, or in addition to",
    r"once more": "again",
    r"by itself": "automatically, or leave it out",
    r"somebody|whoever|anybody": "a user, a process, or who it is",
    r"for people": "human-readable",
    r"(?:is|are|was|were) told (?!that\b)": "is reported, is shown, or receives",
    r"what becomes of": "what happens to",
    r"goes on": "continues, or resumes",
    r"(?:is|are) of concern": "matters",
    r"the very same": "the same",
    r"has to do with": "concerns",
    r"be carried(?! out)": "be copied",
    r"is forgotten": "was removed",
}
PATTERN = re.compile("|".join(rf"(?P<p{i}>\b(?:{phrase})\b)" for i, phrase in enumerate(REFUSED)), re.IGNORECASE)

FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
#: A page of the documentation, as the end of a message. The wheel has no docs.
DOCS = re.compile(r"\bdocs/\w")


@pytest.mark.parametrize(
    "room", sorted(path.name for path in (ROOT / "airflow_provider_cdc").iterdir() if path.is_dir())
)
def test_words(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]!r}: write {list(REFUSED.values())[int(match.lastgroup[1:])]}"  # type: ignore[index]
        for path in sorted(Path(ROOT, "airflow_provider_cdc", room).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for match in PATTERN.finditer(line)
    ]
    assert found == []


def test_messages_name_no_file_that_users_do_not_have() -> None:
    """Docstrings and comments may: they are for those who have the repository."""
    found = []
    for path in sorted(Path(ROOT, "airflow_provider_cdc").rglob("*.py")):
        tree = ast.parse(path.read_text())
        bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | FUNCTION)]
        docstrings = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
        found += [
            f"{path.relative_to(ROOT)}:{node.lineno}: {node.value!r}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
            if DOCS.search(node.value)
        ]
    assert found == []
