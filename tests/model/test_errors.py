"""Errors travel between processes as what they are, with all that they carry."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_cdc.model import errors as exceptions
from airflow_provider_cdc.model.errors import (
    CdcError,
    DamageError,
    TransientError,
    UnexpectedError,
    embed_error,
    extract_error,
)

PACKAGE = Path(exceptions.__file__).parent


def family(kind: type[CdcError] = CdcError) -> Iterator[type[CdcError]]:
    yield kind
    for derived in kind.__subclasses__():
        yield from family(derived)


def test_every_kind_is_known_in_every_process() -> None:
    """A class that stands elsewhere is unknown to a process that has not imported it."""
    for path in PACKAGE.rglob("*.py"):
        if path != Path(exceptions.__file__):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    bases = {ast.unparse(base).split(".")[-1] for base in node.bases}
                    assert not bases & set(exceptions.ERROR_CLASSES), f"{path}: {node.name} belongs into exceptions.py"
    own = [kind for kind in family() if kind.__module__ == exceptions.__name__]
    assert sorted(map(str, exceptions.ERROR_CLASSES.values())) == sorted(map(str, own)) and len(own) > 15


@pytest.mark.parametrize("kind", sorted(exceptions.ERROR_CLASSES.values(), key=str))
def test_every_kind_travels_with_its_fields(kind: type[CdcError]) -> None:
    facts: dict[str, str | int] = {name: 1412 if name == "code" else f"a {name}" for name in kind.fields}
    error = kind('a "message" of <<two>> lines\n', "a remedy", **facts)
    for found in (
        extract_error(f'Traceback:\n  RuntimeError: {embed_error(error)}\n}} cdc>> "'),
        pickle.loads(pickle.dumps(error)),
    ):
        assert type(found) is kind and found.facts == facts == error.facts
        assert (str(found), found.exit_code) == (str(error), error.exit_code)


def test_what_others_derive_travels_as_what_it_is_based_on() -> None:
    class TheirError(DamageError):
        shelf: int | None = None

    error = TheirError("m", "r", place="binlog.000001:4", shelf=7)
    found = extract_error(embed_error(error))
    assert type(found) is DamageError and found.facts == {"place": "binlog.000001:4"}
    assert error.facts == {"place": "binlog.000001:4", "shelf": 7}


def test_what_is_not_known() -> None:
    assert extract_error("nothing") is None and extract_error("<<cdc {broken} cdc>>") is None
    found = extract_error('<<cdc {"kind": "NewerError", "message": "m", "remedy": "r", "column": "c"} cdc>>')
    assert type(found) is UnexpectedError and str(found) == "m. r"
    with pytest.raises(TypeError, match="TransientError has no field 'column'"):
        TransientError("m", column="c")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((1045, "Access denied for user 'u'"), "MySQL error 1045: Access denied for user 'u'"),
        ((2013,), "MySQL error 2013: RuntimeError"),
        ((0, "the connection is closed"), "the connection is closed"),
        ((0, ""), "RuntimeError"),
        (("Packet sequence number wrong",), "Packet sequence number wrong"),
        ((), "RuntimeError"),
    ],
)
def test_texts_of_mysql(args: tuple[object, ...], text: str) -> None:
    assert exceptions.mysql_error_text(RuntimeError(*args)) == text
