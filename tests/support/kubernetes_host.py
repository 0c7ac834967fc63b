"""What a node of Kubernetes takes from this host, and gives back: namespaces, an address and control groups.

The namespaces of processes and mounts end with their first process, and so do all containers, whatever they are. An
address of the loopback interface and control groups do not. So a record of them is kept: where a test process was
killed, the next node removes what it has left.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import os
import random
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.support.packages import ServerUnavailable, cache_folder, locked
from tests.support.processes import Session, remove_folder, tail, temporary_folder, wait_for

#: In the environment of each process of a node.
_MARK = "CDC_KUBERNETES_NODE"
#: Addresses that no machine has: Kubernetes refuses those of 127.0.0.0/8 as addresses of nodes.
_ADDRESSES = ipaddress.ip_network("10.77.0.0/16")
#: What the kubelet would set on this host. It sees a copy of these files, with the values that it wants.
_SYSCTLS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
# In the namespaces, what programs write outside of their folders goes into memory.
_ENTER = """set -e
for place in /run /var/log /var/lib; do mount -t tmpfs node "$place"; done
cd "$1"; for file in */* */*/*; do [ ! -f "$file" ] || mount --bind "$file" "/proc/sys/$file"; done
echo ready
exec "$2" -I -c 'import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # collects processes whose parents have ended
while True: signal.pause()'
"""


class NodeHost:
    """A folder, namespaces, an address and control groups for one node."""

    def __init__(self) -> None:
        self.folder = Path()
        self.address = ""
        self.cgroup = ""
        self._record: IO[str] | None = None
        self._leader: Session | None = None

    def begin(self) -> None:
        """Take them.

        :raise ServerUnavailable: where this process lacks the rights.
        """
        if os.geteuid() != 0:
            raise ServerUnavailable("A node of Kubernetes needs root.")
        with locked("kubernetes-nodes"):
            _remove_left()
            name = secrets.token_hex(4)
            self.folder = temporary_folder("cdc-kubernetes-")
            self.address = str(_ADDRESSES[random.randrange(256, 65_000)])
            self.cgroup = f"cdc-kubernetes-{name}"
            self._record = (_records() / name).open("w")
            fcntl.flock(self._record, fcntl.LOCK_EX)  # held as long as this process lives
            json.dump({"address": self.address, "cgroup": self.cgroup, "folder": str(self.folder)}, self._record)
            self._record.flush()
        _ip("add", self.address)
        _make_cgroups(self.cgroup)
        for file, value in _SYSCTLS.items():
            path = self.folder / "sysctl" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")
        unshare = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        script = ("sh", "-c", _ENTER, "sh", self.folder / "sysctl", sys.executable)
        leader = self._leader = Session([*unshare, *script], self.folder / "namespaces.log", env=self._environment({}))

        def ready() -> bool:
            if not leader.alive:
                raise ServerUnavailable(f"No namespaces for a node of Kubernetes:\n{tail(leader.log)}")
            return "ready" in leader.log.read_text()

        wait_for("namespaces", ready, 30)

    def run(
        self,
        name: str,
        command: Sequence[str | Path],
        env: Mapping[str, str] | None = None,
        *,
        inside: bool = False,
    ) -> Session:
        """Start a program of the node, whose output goes to ``<name>.log``.

        :param inside: in the namespaces.
        """
        enter: list[str | Path] = []
        if inside:
            assert self._leader is not None
            spaces = f"/proc/{self._leader.pid}/ns"
            enter = ["nsenter", f"--mount={spaces}/mnt", f"--pid={spaces}/pid_for_children", "--"]
        return Session([*enter, *command], self.folder / f"{name}.log", env=self._environment(env or {}), cwd=Path("/"))

    def _environment(self, env: Mapping[str, str]) -> dict[str, str]:
        return {**os.environ, **env, _MARK: self.cgroup}

    def end_containers(self) -> None:
        """End everything in the namespaces."""
        if self._leader is not None:
            self._leader.kill_all()
            self._leader = None

    def end(self) -> None:
        """Give back everything; the node's programs have ended. Doing so twice is allowed."""
        self.end_containers()
        if self._record is not None:
            _give_back(self.cgroup, self.address)
            Path(self._record.name).unlink(missing_ok=True)
            self._record.close()
            self._record = None
        if self.folder != Path():
            remove_folder(self.folder)
            self.folder = Path()


# ---------------------------------------------------------------- records


def _records() -> Path:
    folder = cache_folder() / "kubernetes-nodes"
    folder.mkdir(exist_ok=True)
    return folder


def _remove_left() -> None:
    """Remove what is left of nodes whose test processes have ended."""
    for path in _records().iterdir():
        with path.open("r+") as record:
            try:
                fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            with contextlib.suppress(json.JSONDecodeError):
                left = json.load(record)
                _give_back(left["cgroup"], left["address"])
                remove_folder(Path(left["folder"]))
            path.unlink()


def _give_back(cgroup: str, address: str) -> None:
    def ended() -> bool:
        for pid in left_processes(cgroup):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left_processes(cgroup)

    wait_for("processes of the node end", ended, 30)
    for folder in left_cgroups(cgroup):
        for path, _, _ in os.walk(folder, topdown=False):
            with contextlib.suppress(FileNotFoundError):
                wait_for(f"{path} is removed", lambda path=path: _removed(Path(path)), 10)  # type: ignore[misc]
    _ip("del", address)


def _removed(cgroup: Path) -> bool:
    try:
        cgroup.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # the kernel still counts a process that has ended
        return False
    return True


def left_processes(cgroup: str) -> list[int]:
    """Processes of a node that was named so, and of its containers."""
    found = {int(pid) for folder in left_cgroups(cgroup) for pid in _pids(folder)}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if f"{_MARK}={cgroup}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
    return sorted(found)


def _pids(folder: Path) -> Iterator[str]:
    for path in folder.rglob("cgroup.procs"):
        with contextlib.suppress(OSError):
            yield from path.read_text().split()


def left_cgroups(cgroup: str) -> list[Path]:
    """Control groups of a node that was named so."""
    return [mount / cgroup for mount, _ in _hierarchies() if (mount / cgroup).is_dir()]


# ---------------------------------------------------------------- the kernel's side


def _ip(verb: str, address: str) -> None:
    """Add an address to the loopback interface, or delete it."""
    run = subprocess.run(["ip", "address", verb, f"{address}/32", "dev", "lo"], capture_output=True, text=True)
    if run.returncode and verb == "add":
        raise ServerUnavailable(f"No address for a node of Kubernetes: {run.stderr.strip()}")


def _hierarchies() -> Iterator[tuple[Path, str]]:
    """Where the hierarchies of control groups are mounted, and ``cgroup`` or ``cgroup2``."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            yield Path(place), kind


def _make_cgroups(name: str) -> None:
    for mount, kind in _hierarchies():
        (mount / name).mkdir()
        if kind == "cgroup2":
            for folder in (mount, mount / name):
                for controller in (folder / "cgroup.controllers").read_text().split():
                    with contextlib.suppress(OSError):
                        (folder / "cgroup.subtree_control").write_text(f"+{controller}")
        for file in ("cpuset.cpus", "cpuset.mems"):  # empty in a new group of version 1, which then takes no process
            if kind == "cgroup" and (mount / file).exists():
                (mount / name / file).write_text((mount / file).read_text())
