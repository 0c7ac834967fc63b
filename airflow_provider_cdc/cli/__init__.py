"""The command line ``airflow-cdc``, which runs every phase of a pipeline without Airflow.

``base`` has the group of commands, their common options, and the ``RunContext`` of a pipeline file. ``run`` has the
commands that write (``snapshot``, ``stream``, ``run``, ``maintain``, ``resnapshot``, ``forget``), ``inspect`` has those
that only read (``check``, ``plan``, ``verify``, ``explain``, ``status``, ``metrics``), ``control`` those that send a
request to a running stream, ``warm_up`` the one that prepares a machine, and ``pack`` the one that makes an archive of
the environment for others. Each command is thin: it calls one function of a phase and prints its result. The exit code
is 0 if the command succeeds, 1 if a decision or a fix is needed, 2 for a usage error or if something is not ready, 3
for a transient failure that is worth a retry, and 4 if ``verify`` could not compare every table.
"""

from __future__ import annotations

import os
import sys
import traceback

import click

from airflow_provider_cdc.cli import base, control, inspect, pack, run, warm_up  # noqa: F401  # they register commands
from airflow_provider_cdc.cli.base import cli
from airflow_provider_cdc.model.errors import REPORT_REMEDY, CdcError, OutOfMemoryError


def main() -> None:
    """Run the command line, turning errors into one line and an exit code."""
    from airflow_provider_cdc.config.connections import scrub_secrets

    try:
        try:
            code = cli.main(standalone_mode=False)
        except MemoryError:
            raise OutOfMemoryError from None
        sys.exit(code if isinstance(code, int) else 0)
    except CdcError as error:
        click.echo(scrub_secrets(f"error: {error}".replace("\n", " "), base.known_secrets), err=True)
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        text = error.format_message().rstrip(".")
        text += " See" if text.endswith("?") else ". See"
        click.echo(f"error: {text} airflow-cdc --help".replace("\n", " "), err=True)
        sys.exit(error.exit_code)
    except Exception as error:
        if os.environ.get("CDC_DEBUG"):
            click.echo(scrub_secrets(traceback.format_exc(), base.known_secrets), err=True)
        text = f"error: unexpected {type(error).__name__}: {error}. Set CDC_DEBUG=1 to see where, and {REPORT_REMEDY}"
        click.echo(scrub_secrets(text.replace("\n", " "), base.known_secrets), err=True)
        sys.exit(1)
