"""How the suite is run: which tests stay together, which share of the long ones is run, and what is said at the end."""

from __future__ import annotations

import faulthandler
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

#: Folders whose tests take four fifths of the time of all. They come first, so that no worker begins one of them last
#: and keeps all waiting; and they take turns: with each commit, ``make test`` runs a third of them.
SLOW = (
    "tests/in_airflow/",
    "tests/snapshot/",
    "tests/resnapshot/",
    "tests/apply/",
    "tests/stream/",
    "tests/verify/",
    "tests/explain/",
    "tests/maintenance/",
    "tests/observe/",
    "tests/preflight/",
    "tests/runtime/",
    "tests/docker/",
    "tests/restart/",
    "tests/system/",
    "tests/faults/",
    "tests/mysql/keys/",
    "tests/spark/",
    "tests/data_source/",
)
#: Of these, the one that shows that all of it fits together, and those that take no time.
ALWAYS = (
    "tests/system/test_end_to_end.py",
    "tests/observe/test_alerts.py",
    "tests/snapshot/test_retention.py",
)
#: Files that share an Airflow: those of the examples, those that run tasks again, and those that kill its processes.
TOGETHER = {
    "tests/in_airflow/test_examples.py": "calm",
    "tests/in_airflow/test_retries.py": "repeated",
    "tests/in_airflow/test_tables.py": "repeated",
    "tests/in_airflow/test_life.py": "disturbed",
    "tests/in_airflow/test_lineage.py": "calm",
    "tests/in_airflow/test_outages.py": "disturbed",
    "tests/in_airflow/test_page.py": "disturbed",
    "tests/in_airflow/test_windows.py": "disturbed",
    "tests/ui/test_action_rules.py": "page",
    "tests/ui/test_browser.py": "page",
    "tests/ui/test_browser_large.py": "page",
    "tests/ui/test_browser_layout.py": "page",
    "tests/ui/test_browser_parts.py": "page",
    "tests/ui/test_declared_tasks.py": "page",
    "tests/ui/test_change_rates.py": "page",
    "tests/ui/test_cli_commands.py": "page",
    "tests/ui/test_large_pipeline.py": "page",
    "tests/ui/test_pictures.py": "page",
    "tests/ui/test_rights.py": "page",
    "tests/ui/test_troubles.py": "page",
}
#: Turns of the groups that start an Airflow each: one of them in every run.
AIRFLOW_TURNS = {"calm": 1, "disturbed": 2, "repeated": 3}


def together(nodeid: str) -> str:
    """Name of what is run by one worker, one test after the other: a file, or several."""
    file = nodeid.partition("::")[0]
    return TOGETHER.get(file, file)


def order(nodeid: str) -> int:
    """When a test comes, compared to those of other files."""
    return next((number for number, start in enumerate(SLOW) if nodeid.startswith(start)), len(SLOW))


def share_of(text: str) -> tuple[int, int]:
    """``K/N``, a share or a turn, as two numbers.

    :raises ValueError: if it is not the K-th of N shares.
    """
    share, shares = map(int, text.split("/"))
    if not 1 <= share <= shares:
        raise ValueError(f"{text} is no share: give K/N with K from 1 to N")
    return share, shares


def in_share(nodeid: str, share: int, shares: int) -> bool:
    """Whether a test belongs to a share. It depends on its name alone, so each is in one share, today and tomorrow."""
    return _number(nodeid) % shares == share - 1


def in_turn(nodeid: str, turn: int, turns: int) -> bool:
    """Whether it is a test's turn: always, but in the folders whose tests take turns."""
    file = nodeid.partition("::")[0]
    if not file.startswith(SLOW) or file in ALWAYS:
        return True
    return (AIRFLOW_TURNS.get(TOGETHER.get(file, "")) or _number(nodeid)) % turns == turn % turns


def _number(nodeid: str) -> int:
    return int.from_bytes(sha256(nodeid.encode()).digest()[:8])


def repetitions(items: Iterable[Any]) -> Iterator[Any]:
    """Of tests that are marked ``one_of(parameter, ...)``, those with the values of the parameters that are left to the
    long tests. Which are kept depends on the test's name and its other parameters: all values have their turn.
    """
    groups = defaultdict[tuple[str, frozenset[tuple[str, int]]], list[Any]](list)
    for item in items:
        marker = item.get_closest_marker("one_of")
        if marker and hasattr(item, "callspec") and not item.get_closest_marker("long"):
            others = {(name, id(value)) for name, value in item.callspec.params.items() if name not in marker.args}
            groups[item.nodeid.partition("[")[0], frozenset(others)].append(item)
    for variants in groups.values():
        kept = _number(variants[0].nodeid) % len(variants)
        yield from (item for number, item in enumerate(variants) if number != kept)


def repeat(nodeid: str, marker: str = "") -> str:
    """The command that runs one test again, with the seed that stands in its name.

    :param marker: of tests that are run only if they are asked for by it.
    """
    return f".venv/bin/python -m pytest {f'-m {marker} ' if marker else ''}{shlex.quote(nodeid)}"


#: Characters of a failure, and of what was written meanwhile, that are shown: CI keeps little, and a log is long.
_SHOWN, _SHOWN_OUTPUT = 6000, 2000


def shorten(report: Any, file: Path) -> None:
    """Leave of a failed test's report what is read first, and write all of it to a file.

    :param report: of pytest, changed here.
    """
    text = str(report.longrepr)
    whole = "\n".join((text, *(f"--- {name}\n{output}" for name, output in report.sections)))
    if len(text) > _SHOWN:
        report.longrepr = f"{text[: _SHOWN // 3]}\n[...]\n{text[-_SHOWN * 2 // 3 :]}"
    report.sections = [(name, output[-_SHOWN_OUTPUT:]) for name, output in report.sections]
    if len(whole) > _SHOWN:
        file.write_text(whole)
        report.sections.append(("All of it", str(file)))


#: A worker's file below its temp folder where it says how it crashed, and the lines that are shown of it.
_CRASH, _CRASH_LINES = "crash.txt", 60


def tell_crashes(folder: Path) -> None:
    """Let this process write down where it is when it crashes.

    :param folder: of a worker, below that of the whole run.
    """
    faulthandler.enable((folder / _CRASH).open("w"))


def crashes(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Names of the workers that have crashed, and where each was: the thread that crashed first.

    :param folder: of the whole run.
    """
    for file in sorted(folder.glob(f"*/{_CRASH}")):
        parts = [part.strip() for part in file.read_text(errors="replace").split("\n\n")]
        error, threads = parts[0], [part for part in parts[1:] if part]
        if error:
            threads.sort(key=lambda part: not part.startswith("Current thread"))
            yield file.parent.name.removeprefix("popen-"), "\n\n".join((error, *threads)).splitlines()[:_CRASH_LINES]


def seconds_by_folder(reports: Iterable[Any]) -> dict[str, tuple[int, float]]:
    """Number of tests and seconds that they took, by folder, the longest first.

    :param reports: pytest's, of set-up, call and tear-down.
    """
    names, seconds = defaultdict[str, set[str]](set), defaultdict[str, float](float)
    for report in reports:
        folder = str(PurePosixPath(report.nodeid.partition("::")[0]).parent)
        names[folder].add(report.nodeid)
        seconds[folder] += report.duration
    return {name: (len(names[name]), seconds[name]) for name in sorted(seconds, key=lambda n: -seconds[n])}
