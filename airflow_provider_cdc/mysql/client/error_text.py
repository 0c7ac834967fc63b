"""Errors of the driver that talks to MySQL and MariaDB, as text."""

from __future__ import annotations


def mysql_error_text(error: BaseException) -> str:
    """Return what an error of the driver says, such as ``MySQL error 2003: Can't connect to MySQL server on 'db'``.

    :param error: its ``args`` are the number and the text of the error, or only a text.
    """
    has_number = bool(error.args) and isinstance(error.args[0], int)
    texts = error.args[1:] if has_number else error.args
    text = str(texts[0] if texts else "") or type(error).__name__
    return f"MySQL error {error.args[0]}: {text}" if has_number and error.args[0] else text
