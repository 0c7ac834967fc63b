"""Commands that the page shows can be copied: they name the file and the pipeline."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from airflow_provider_cdc.cli.base import cli
from airflow_provider_cdc.ui.cli_commands import SUBCOMMANDS, PipelineCommands
from airflow_provider_cdc.ui.declared_tasks import DeclaredTask

SHOP = PipelineCommands("shop", "/my dags/shop.py")
OPTIONS = "-f '/my dags/shop.py' --pipeline shop"


def test_every_command_is_known() -> None:
    of_a_pipeline = {
        name
        for name, command in cli.commands.items()
        if {"-f", "--pipeline"} <= {option for parameter in command.params for option in parameter.opts}
    }
    assert set(SUBCOMMANDS) == of_a_pipeline
    assert set(cli.commands) - of_a_pipeline == {"pack", "warm-up"}, "they prepare a machine"


@pytest.mark.parametrize(
    ("text", "completed"),
    [
        (
            "Re-snapshot it: airflow-cdc resnapshot --table shop.orders (needs a stream)",
            f"Re-snapshot it: `airflow-cdc resnapshot {OPTIONS} --table shop.orders` (needs a stream)",
        ),
        (
            "`airflow-cdc verify --repair` re-snapshots them, `airflow-cdc verify` compares",
            f"`airflow-cdc verify {OPTIONS} --repair` re-snapshots them, `airflow-cdc verify {OPTIONS}` compares",
        ),
        (
            "Compare it: airflow-cdc verify --tables 'shop.my table'. Then resume it",
            f"Compare it: `airflow-cdc verify {OPTIONS} --tables 'shop.my table'`. Then resume it",
        ),
        ("airflow-cdc resume --table shop.a. Or not", f"`airflow-cdc resume {OPTIONS} --table shop.a`. Or not"),
        ("owned by airflow-cdc pipeline shop", "owned by airflow-cdc pipeline shop"),
        ("no command", "no command"),
        (None, None),
    ],
)
def test_texts(text: str | None, completed: str | None) -> None:
    assert SHOP.complete_text(text) == completed


def test_a_file_that_is_not_known() -> None:
    """The text says what to put in, once."""
    unknown = PipelineCommands("shop", None)
    assert unknown.complete_text("Run airflow-cdc plan or airflow-cdc run") == (
        "Run `airflow-cdc plan -f FILE --pipeline shop` or `airflow-cdc run -f FILE --pipeline shop`. "
        "FILE is the DAG file or YAML file of shop"
    )
    assert unknown.complete_text("no command") == "no command"


def test_the_command_that_explains_a_row() -> None:
    words = shlex.split(SHOP.explain_command("shop.my table", ("id", "a b")))
    assert words == [
        *("airflow-cdc", "explain", "-f", "/my dags/shop.py", "--pipeline", "shop", "--table", "shop.my table"),
        *("--key", "id=VALUE", "--key", "a b=VALUE"),
    ]


def test_which_file() -> None:
    """That of a DAG that the user may read, unless only a run of the DAG knows the pipeline."""
    given = DeclaredTask("a", "t", "CdcStreamOperator", False, None, {"name": "shop"}, "shop", file="/a.py")
    other = replace(given, dag_id="b", file="/b.py")
    templated = replace(given, dag_id="c", pipeline={"name": "shop_{{ params.n }}"}, file="/c.py")
    for tasks, file in (([given, other], "/b.py"), ([templated], None), ([given], None)):
        assert PipelineCommands.for_pipeline("shop", tasks, {"b", "c"}).file == file
