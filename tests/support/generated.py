"""Parts of the documentation that tests have written, between ``<!-- name -->`` and ``<!-- end of name -->``.

``CDC_WRITE_DOCS=1`` before the command of the test writes them anew.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from tests import ROOT


def held_by(path: str, name: str, lines: Sequence[str]) -> bool:
    """Whether a page has these lines at its place of that name."""
    page = ROOT / path
    text, begin, end = page.read_text(), f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, rest = text.split(begin)
    found, after = rest.split(end)
    wanted = "\n" + "\n".join(lines) + "\n\n"
    if os.environ.get("CDC_WRITE_DOCS") and found != wanted:
        page.write_text(before + begin + wanted + end + after)
        return True
    return found == wanted
