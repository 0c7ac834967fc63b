"""What any storage must do. One that is added is opened by ``storage``, and everything here is asked of it."""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from airflow_provider_cdc.sinks.storage.storage import (
    Storage,
    read_json,
    read_json_if_intact,
    write_json,
    write_json_once,
)
from tests.support.object_store import object_storage
from tests.support.s3 import s3_server

#: Large enough for a reader, or the end of the writer, to come in the middle.
SIZE = 2_000_000
ODD = [
    "a b/c d.json",
    "%41/%2F.json",
    "=2F=25/x=1",
    ".hidden/.json",
    "..a/b..",
    "a#b?c&d/e;f,g",
    "'q\"/`t`",
    "日本/ünï.json",
    "é/é",  # one composed, the other not: two names
    f"{'n' * 200}/{'m' * 200}",
    "deep/" * 20 + "x",
    "x.tmp",
    ".x.tmp",
]


@pytest.fixture(params=["local", "moto", pytest.param("versitygw", marks=pytest.mark.long)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "local":
        yield LocalStorage(tmp_path / "root")
        return
    with s3_server(request.param) as place:
        yield object_storage(place, "root")


def listed(storage: Storage, folder: str = "") -> dict[str, int]:
    found = list(storage.list(folder))
    assert len(dict(found)) == len(found), "a file is listed twice"
    return dict(found)


@contextmanager
def process(storage: Storage, code: str) -> Iterator[tuple[IO[bytes], IO[bytes], Callable[[], None]]]:
    """A process that has got the storage and runs some code; its input, its output, and what kills it."""
    head = (
        "import json, pickle, sys; size = int(sys.argv[1]); me = sys.argv[2].encode()\n"
        "storage = pickle.load(sys.stdin.buffer)\nprint('ready', flush=True)\nsys.stdin.readline()\n"
    )
    arguments = [sys.executable, "-c", head + code, str(SIZE), chr(random.randrange(97, 123))]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdin is not None and started.stdout is not None
        try:
            pickle.dump(storage, started.stdin)
            started.stdin.flush()
            assert started.stdout.readline() == b"ready\n"
            yield started.stdin, started.stdout, started.kill
        finally:
            started.kill()


def go(stdin: IO[bytes]) -> None:
    stdin.write(b"go\n")
    stdin.flush()


# ---------------------------------------------------------------- whole or not at all


def whole(data: bytes | None) -> bool:
    return data is None or (len(data) == SIZE == data.count(data[:1]))


def rounds(storage: Storage) -> int:
    return 12 if isinstance(storage, LocalStorage) else 4


def slowness(storage: Storage) -> int:
    return 1 if isinstance(storage, LocalStorage) else 30


def test_a_file_is_whole_while_it_is_replaced_and_when_its_writer_is_killed(storage: Storage) -> None:
    """Many times, each at another moment of the writing."""
    code = "n = 0\nwhile True:\n    storage.write('folder/f', bytes([65 + n % 26]) * size)\n    n += 1\n"
    seen: set[bytes | None] = set()
    for _ in range(rounds(storage)):
        with process(storage, code) as (stdin, _, kill):
            go(stdin)
            until = time.monotonic() + random.uniform(0.01, 0.1) * slowness(storage)
            while time.monotonic() < until:
                data = storage.read("folder/f")
                assert whole(data), "seen in part by a reader"
                seen.add(data)
            kill()
        data = storage.read("folder/f")
        assert whole(data), "left in part by a writer that was killed"
        assert listed(storage) == ({} if data is None else {"folder/f": SIZE})
    assert len(seen) > 2, "nothing was written meanwhile"


def test_a_file_that_is_written_once_is_whole_when_its_writer_is_killed(storage: Storage) -> None:
    code = "n = 0\nwhile storage.write_once(f'{me.decode()}/{n}', me * size): n += 1\n"
    written = 0
    for _ in range(rounds(storage)):
        with process(storage, code) as (stdin, _, kill):
            go(stdin)
            time.sleep(random.uniform(0.005, 0.04) * slowness(storage))
            kill()
        written += len(listed(storage))
        for name, size in listed(storage).items():
            assert size == SIZE and whole(storage.read(name))
        for folder in {name.partition("/")[0] for name in listed(storage)}:
            storage.delete_folder(folder)
    assert written, "nothing was written meanwhile"


def test_what_is_written_takes_the_place_of_what_was_there(storage: Storage) -> None:
    for data in (b"long before", b"short", b""):
        storage.write("f", data)
        assert storage.read("f") == data and listed(storage) == {"f": len(data)}


# ---------------------------------------------------------------- once


def test_of_several_processes_one_writes(storage: Storage) -> None:
    """Whoever comes second finds what the first one wrote, all of it."""
    code = (
        "import time\n"
        "number, begin, count, pace = json.loads(sys.stdin.readline())\n"
        "won, me = [], f'{me}{number}'\n"
        "for n in range(count):\n"
        "    time.sleep(max(0, begin + pace * n - time.time() - 0.001))\n"
        "    while time.time() < begin + pace * n: pass\n"
        "    text = json.dumps([me, n, 'x' * 5000])\n"
        "    if storage.write_once(f'once/{n}', text.encode()): won.append(n)\n"
        "    else: assert json.loads(storage.read(f'once/{n}'))[0] != me\n"
        "print(json.dumps([me, won]), flush=True)\n"
    )
    storage.write("warm", b"")
    before = time.monotonic()
    storage.write_once("time/a", b"x" * 5000)
    assert not storage.write_once("time/a", b"x" * 5000) and storage.read("time/a")
    taken = time.monotonic() - before
    # So slow that none of them falls behind for good: who is ahead by a whole write wins every name.
    count, pace = (40, min(0.5, max(0.05, 4 * taken))) if storage.is_remote else (100, min(0.1, max(0.002, 4 * taken)))
    with process(storage, code) as a, process(storage, code) as b, process(storage, code) as c:
        begin = time.time() + 0.5  # each name at the same moment in all of them
        for number, (stdin, _, _) in enumerate((a, b, c)):
            stdin.write(f"go\n{json.dumps([number, begin, count, pace])}\n".encode())
        for stdin, _, _ in (a, b, c):
            stdin.flush()
        won = dict(json.loads(stdout.readline()) for _, stdout, _ in (a, b, c))
    assert sorted(n for mine in won.values() for n in mine) == list(range(count)), "won by none or by several"
    assert sum(map(bool, won.values())) > 1, "they did not meet"
    for winner, numbers in won.items():
        for n in numbers:
            assert json.loads(storage.read(f"once/{n}") or b"")[:2] == [winner, n]


def test_what_is_written_once_stays(storage: Storage) -> None:
    assert storage.write_once("f", b"first")
    assert not storage.write_once("f", b"second") and storage.read("f") == b"first"
    storage.write("g", b"by write")
    assert not storage.write_once("g", b"once") and storage.read("g") == b"by write"
    storage.delete("f")
    assert storage.write_once("f", b"third") and storage.read("f") == b"third"
    assert listed(storage) == {"f": 5, "g": 8}


# ---------------------------------------------------------------- names


def test_odd_names(storage: Storage) -> None:
    """Each is one file of its own, and is listed as it was written."""
    sizes = {}
    for number, name in enumerate(ODD):
        storage.write(name, b"x" * number)
        sizes[name] = number
    assert listed(storage) == sizes
    for number, name in enumerate(ODD):
        assert storage.read(name) == b"x" * number
        assert not storage.write_once(name, b"other")
        with storage.open(name, "rb") as file:
            assert file.read() == b"x" * number
        assert listed(storage, name.rpartition("/")[0])[name] == number
    storage.delete(*ODD)
    assert listed(storage) == {}


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../f", "a/../../f", "a/", "a//b", "./a", "a/."])
def test_names_that_are_none(storage: Storage, name: str) -> None:
    """What lies outside of the root cannot be named, and no file has two names."""
    for refuse in (
        lambda: storage.read(name),
        lambda: storage.write(name, b""),
        lambda: storage.write_once(name, b""),
        lambda: storage.delete(name),
        lambda: storage.delete_folder(name),
        lambda: storage.open(name, "wb"),
        lambda: storage.subfolder(name),
    ):
        with pytest.raises(ValueError, match="is not the name of a file below"):
            refuse()


def test_a_folder_is_listed_with_what_is_below_it(storage: Storage) -> None:
    names = ["a/b", "a/c/d", "a/c/e/f", "ab/g", "a.json", "b/a/b"]
    for name in names:
        storage.write(name, b"1")
    assert set(listed(storage)) == set(names)
    assert set(listed(storage, "a")) == {"a/b", "a/c/d", "a/c/e/f"}, "a folder's name is no prefix of others"
    assert set(listed(storage, "a/c")) == {"a/c/d", "a/c/e/f"}
    for name in ("none", "a/none", "a/b", "a/b/none"):  # a file is no folder
        assert listed(storage, name) == {}


def test_what_is_not_there(storage: Storage) -> None:
    storage.write("a/b", b"1")
    for name in ("none", "a/none", "none/none", "a", "a/b/none"):
        assert storage.read(name) is None and storage.size(name) is None
        storage.delete(*([name] if name != "a" else []))
        with pytest.raises(OSError):
            storage.open(name, "rb")
    with pytest.raises(FileNotFoundError):
        storage.open("none", "rb")
    storage.delete_folder("none")
    assert listed(storage) == {"a/b": 1}


def test_a_file_that_goes_while_others_are_listed(storage: Storage) -> None:
    names = [f"f/{n}" for n in range(20)]
    for name in names:
        storage.write(name, b"1")
    found = storage.list("f")
    seen = {next(found)[0]}
    storage.delete(*(set(names) - seen))
    seen |= {name for name, _ in found}
    assert seen <= set(names)


# ---------------------------------------------------------------- deleting


def test_deleting(storage: Storage) -> None:
    for name in ("a/1", "a/2", "a/3", "b/1"):
        storage.write(name, b"1")
    storage.delete()
    storage.delete("a/none", "a/1", "none/x", "a/2")
    assert set(listed(storage)) == {"a/3", "b/1"} and storage.read("a/1") is None


def test_no_empty_folder_stays(tmp_path: Path) -> None:
    """Each epoch has folders of its own; the root of a storage stays."""
    storage = LocalStorage(tmp_path / "root")
    for name in ("changes/epoch-1/a", "changes/epoch-1/b", "changes/epoch-2/a"):
        storage.write(name, b"x")
    storage.delete("changes/epoch-1/a", "changes/epoch-1/none", "nowhere/none")
    assert (tmp_path / "root/changes/epoch-1").is_dir()
    storage.delete("changes/epoch-1/b")
    assert [path.name for path in (tmp_path / "root/changes").iterdir()] == ["epoch-2"]
    storage.subfolder("changes").delete("epoch-2/a")
    assert [*(tmp_path / "root").rglob("*")] == [tmp_path / "root/changes"]


def test_writing_into_a_folder_that_somebody_removes(tmp_path: Path) -> None:
    """Whoever deletes its last file does, at any moment."""
    storage, over = LocalStorage(tmp_path), threading.Event()

    def delete() -> None:
        while not over.wait(random.random() / 5000):  # without pauses, the two threads can keep in step for ever
            storage.delete("a/b/gone")

    thread = threading.Thread(target=delete)
    thread.start()
    try:
        for number in range(300):
            storage.write("a/b/x", b"x")
            assert storage.write_once("a/b/y", b"y")
            with storage.open("a/b/z", "wb") as file:
                file.write(b"z")
            assert [storage.read(f"a/b/{name}") for name in "xyz"] == [b"x", b"y", b"z"], number
            storage.delete("a/b/x", "a/b/y", "a/b/z")
    finally:
        over.set()
        thread.join()


def test_clearing(storage: Storage) -> None:
    """What comes afterwards finds the place as if nothing had been there, also a half-written file."""
    for name in ("a/b/1", "a/b/c/2", "a/bc/3", "a/4"):
        storage.write(name, b"1")
    storage.open("a/b/half", "wb").write(b"x")
    storage.delete_folder("a/b")
    assert set(listed(storage)) == {"a/bc/3", "a/4"}
    storage.write("a/b/1", b"2")
    assert set(listed(storage)) == {"a/b/1", "a/bc/3", "a/4"}


# ---------------------------------------------------------------- in pieces


def test_a_file_in_pieces(storage: Storage) -> None:
    with storage.open("new/folder/f", "wb") as file:
        for _ in range(10):
            file.write(b"0123456789" * 1000)
        assert file.tell() == 100_000
    assert listed(storage) == {"new/folder/f": 100_000} == {"new/folder/f": storage.size("new/folder/f")}
    with storage.open("new/folder/f", "rb") as file:
        assert file.size() == 100_000
        file.seek(99_995)
        assert file.read() == b"56789"
    with storage.open("new/folder/f", "wb") as file:
        file.write(b"anew")
    assert storage.read("new/folder/f") == b"anew"


# ---------------------------------------------------------------- within


def test_within_a_folder(storage: Storage) -> None:
    inner = storage.subfolder("a/b")
    inner.write("c/d", b"1")
    assert listed(inner) == {"c/d": 1} == listed(inner, "c") and listed(storage) == {"a/b/c/d": 1}
    assert inner.subfolder("c").read("d") == b"1" == storage.read("a/b/c/d")
    assert inner.location("c/d") == storage.location("a/b/c/d") and inner.location() == storage.location("a/b")
    assert inner.uri("c/d") == storage.uri("a/b/c/d") and "://" in inner.uri()
    inner.delete("c/d")
    assert listed(storage) == {}


def test_it_can_be_sent_to_a_task(storage: Storage) -> None:
    storage.write("a/f", b"1")
    sent: Storage = pickle.loads(pickle.dumps(storage.subfolder("a")))
    assert sent.read("f") == b"1"


# ---------------------------------------------------------------- JSON


def test_json(storage: Storage) -> None:
    assert read_json(storage, "f") is None and read_json_if_intact(storage, "f") is None
    write_json(storage, "f", {"ü": [1, None]})
    with pytest.raises(TypeError):
        write_json(storage, "f", {"a": object()})
    assert not write_json_once(storage, "f", 1) and write_json_once(storage, "g", 1)
    assert (
        read_json(storage, "f") == {"ü": [1, None]} == read_json_if_intact(storage, "f")
        and read_json(storage, "g") == 1
    )
    for damaged in (b"", b'{"a": ', b"\0" * 10, b"\xff"):
        storage.write("f", damaged)
        with pytest.raises(ValueError):
            read_json(storage, "f")
        assert read_json_if_intact(storage, "f") is None


def test_others_cannot_read_what_holds_keys(tmp_path: Path) -> None:
    """The plan has the bounds of chunks, which are values of rows. Data files get the permissions of the umask."""
    storage, before = LocalStorage(tmp_path), os.umask(0o022)
    try:
        write_json_once(storage, "_cdc/shop/plan.json", {})
        write_json(storage, "_cdc/shop/batch.json", {})
        write_json(storage, "shop/orders/_delta_log/00000000000000000000.json", {})
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*.json")}
    assert modes == {"plan.json": 0o640, "batch.json": 0o640, "00000000000000000000.json": 0o644}
