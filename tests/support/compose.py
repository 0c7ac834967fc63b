"""What docker/ says, and its services as processes of this machine: same commands, settings, files, health checks.

What a process cannot have is exchanged, and nothing else: a service's name and port for an address and a free port, a
volume for a folder, the file system of the image for a folder of each service's own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_cdc.spark.java import ensure_java_home
from tests import ROOT
from tests.support.processes import Session, StartedProcesses, free_port, remove_folder, tail, temporary_folder

__all__ = ["DOCKER", "Image", "Service", "Stack", "StackError", "image", "interpolate", "load", "make_env", "variables"]

DOCKER = ROOT / "docker"

_VARIABLE = re.compile(r"\$(?:\$|\{(?P<name>\w+)(?:(?P<how>:[-?])(?P<what>[^}]*))?\})")
#: How long all services may take until they are healthy.
_SECONDS = 240
#: What a process needs of the machine it runs on.
_OF_THE_MACHINE = ("LANG", "LD_LIBRARY_PATH", "PATH", "TMPDIR")


class StackError(Exception):
    """A service did not come up; with the end of its log."""


# ---------------------------------------------------------------- what the files say


def make_env(folder: Path) -> dict[str, str]:
    """Run docker/make-env for a folder, and return what docker/.env would hold."""
    for name in ("make-env", ".env.example"):
        shutil.copy(DOCKER / name, folder)
    subprocess.run([folder / "make-env"], check=True, capture_output=True, timeout=60)
    lines = [line for line in (folder / ".env").read_text().splitlines() if line and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def variables(text: str) -> dict[str, str | None]:
    """Names of the variables in a text, and what follows ``:-`` or ``:?`` (with the two characters)."""
    found = (m for m in _VARIABLE.finditer(text) if m["name"])
    return {m["name"]: None if m["how"] is None else m["how"] + m["what"] for m in found}


def interpolate(value: Any, env: Mapping[str, str]) -> Any:
    """Replace ``${NAME}``, ``${NAME:-default}``, ``${NAME:?message}`` and ``$$`` in all texts of a YAML value.

    :raise StackError: for a variable that must be set and is not.
    """

    def of(match: re.Match[str]) -> str:
        if match["name"] is None:
            return "$"
        found = env.get(match["name"], "")
        if not found and match["how"] == ":?":
            raise StackError(f"{match['name']}: {match['what']}")
        return found or (match["what"] if match["how"] == ":-" else "")

    if isinstance(value, str):
        return _VARIABLE.sub(of, value)
    if isinstance(value, Mapping):
        return {key: interpolate(v, env) for key, v in value.items()}
    return [interpolate(v, env) for v in value] if isinstance(value, list) else value


def load(env: Mapping[str, str], *overlays: str) -> dict[str, Any]:
    """docker/compose.yaml as Compose sees it: anchors merged, variables replaced.

    :param overlays: files of docker/ that are laid over it; of a volume, the target counts.
    """
    found: dict[str, Any] = interpolate(yaml.safe_load((DOCKER / "compose.yaml").read_text()), env)
    for name in overlays:
        over = interpolate(yaml.safe_load((DOCKER / name).read_text()), env)
        for service, spec in over["services"].items():
            below = found["services"][service]
            assert spec.keys() <= {"environment", "volumes"}, "nothing else is merged here"
            below["environment"] |= spec.get("environment", {})
            below["volumes"] = [*below["volumes"], *spec.get("volumes", [])]
    return found


@dataclass(frozen=True)
class Image:
    """What docker/Dockerfile says of the image that is run (its last stage).

    :ivar env: its variables.
    :ivar files: those of docker/ in it (path in the image -> path here).
    :ivar folders: those that it makes.
    """

    env: dict[str, str]
    files: dict[str, Path]
    folders: list[str]


def image() -> Image:
    """Read docker/Dockerfile."""
    text = re.sub(r"\\\n\s*", " ", (DOCKER / "Dockerfile").read_text())
    stage = text[text.rindex("\nFROM ") :]
    env = dict(pair.split("=", 1) for line in re.findall(r"^ENV (.*)", stage, re.M) for pair in line.split())
    files: dict[str, Path] = {}
    for line in re.findall(r"^COPY (docker/.*)", stage, re.M):
        *sources, target = line.split()
        files |= {f"{target}{Path(source).name}": ROOT / source for source in sources}
    return Image(env, files, re.findall(r"/\S+", " ".join(re.findall(r"mkdir -p ([^&]*)", stage))))


# ---------------------------------------------------------------- services as processes


@dataclass
class Service:
    """One container of the file, as a process.

    :ivar name: that of its service, with a number behind where there are several.
    """

    name: str
    spec: Mapping[str, Any]
    root: Path
    env: dict[str, str]
    command: list[str]
    health: list[str]
    log: Path
    sessions: list[Session] = field(default_factory=list)

    def run(self, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """As ``docker compose exec`` does: run a command in it and return what came of it."""
        return subprocess.run(
            words, env=self.env, cwd=self.root / "opt/airflow", capture_output=True, text=True, timeout=timeout
        )

    def start(self) -> Session:
        """Start its command."""
        self.sessions.append(Session(self.command, self.log, env=self.env, cwd=self.root / "opt/airflow"))
        return self.sessions[-1]

    def healthy(self) -> bool:
        """Whether its health check passes; one without is healthy."""
        return not self.health or self.run(*self.health).returncode == 0


class Stack(StartedProcesses):
    """The services of docker/compose.yaml that run our image; a context manager.

    :param env: what docker/.env holds.
    :param given: addresses (host, port) of the services that run elsewhere: ``mysql`` and ``postgres``.
    :param spark_host: address that the processes of Spark listen on.
    :param files: what services that run elsewhere have left in volumes (``volume/name`` -> content).
    :param overlays: files of docker/ that are laid over docker/compose.yaml.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        given: Mapping[str, tuple[str, int]],
        spark_host: str,
        files: Mapping[str, bytes] | None = None,
        overlays: Sequence[str] = (),
    ) -> None:
        self.env, self._files = dict(env), dict(files or {})
        self.document = load(env, *overlays)
        self._given, self.spark_host = dict(given), spark_host
        self._image = image()
        self._ports: dict[tuple[str, int], tuple[str, int]] = {}
        self.folder = Path()
        self.services: dict[str, Service] = {}

    # -- life

    def _begin(self) -> None:
        """Start all services in the order of their ``depends_on`` and wait until they are healthy.

        :raise StackError: when one ended by itself, or after some minutes.
        """
        deadline = time.monotonic() + _SECONDS
        self.folder = temporary_folder("cdc-stack-")
        self._prepare()
        waiting, done = dict(self.services), dict.fromkeys(self._given, "service_healthy")
        while waiting:
            for name, service in list(waiting.items()):
                if service.sessions:
                    state = self._state(service)
                    if state is not None:
                        done[service.name] = done[_base(name)] = state
                        del waiting[name]
                elif all(
                    done.get(other) == rule["condition"] for other, rule in service.spec.get("depends_on", {}).items()
                ):
                    service.start()
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {s.name}\n{tail(s.log, 15)}" for s in waiting.values())
                raise StackError(f"not ready after {_SECONDS} s: {', '.join(waiting)}\n{logs}")
            time.sleep(0.5)

    def _state(self, service: Service) -> str | None:
        """What may be said of a service that was started, in the words of ``depends_on``."""
        session = service.sessions[-1]
        once = service.spec.get("restart") == "no"
        if not session.alive and (session.exit_code or not once):
            raise StackError(f"{service.name} ended ({session.exit_code}):\n{tail(service.log)}")
        if once:
            return None if session.alive else "service_completed_successfully"
        return "service_healthy" if service.healthy() else None

    def close(self) -> None:
        """End all services and remove their folders. Doing so twice is allowed. Detached drivers are not touched."""
        sessions = [session for service in reversed(self.services.values()) for session in service.sessions]
        for session in sessions:
            session.terminate()
        for session in sessions:
            session.end()
        if self.folder != Path():
            remove_folder(self.folder)
            self.folder = Path()

    # -- use

    def story(self) -> str:
        """The end of each service's log, and of those of Spark's executors; for a test that fails."""
        logs = [service.log for service in self.services.values()]
        logs += sorted(self.folder.rglob("work/app-*/*/stderr"))
        return "\n".join(f"--- {log}\n{tail(log, 20)}" for log in logs)

    def address(self, name: str, port: int) -> str:
        """Where a port of a service is: ``host:port``."""
        host, number = self._ports[name, port]
        return f"{host}:{number}"

    def volume(self, name: str) -> Path:
        """The folder that stands for a volume."""
        return self.folder / "volumes" / name

    # -- how

    def _prepare(self) -> None:
        names: dict[str, Mapping[str, Any]] = {}
        for name, spec in self.document["services"].items():
            if name not in self._given:
                replicas = spec.get("deploy", {}).get("replicas", 1)
                names |= {f"{name}-{n}": spec for n in range(1, replicas + 1)} if replicas > 1 else {name: spec}
        known = "|".join(map(re.escape, self.document["services"]))
        for name, port in set(re.findall(rf"(?<![\w.-])({known}):(\d+)", yaml.safe_dump(self.document["services"]))):
            for member in [n for n in names if _base(n) == name] or [name]:
                host = self.spark_host if name.startswith("spark") else "127.0.0.1"
                self._ports[member, int(port)] = self._given.get(name, (host, free_port()))
        for name in self.document["volumes"]:
            self.volume(name).mkdir(parents=True)
        for name, content in self._files.items():
            self.volume(name).write_bytes(content)
        for name, spec in names.items():
            self.services[name] = self._service(name, spec)

    def _service(self, name: str, spec: Mapping[str, Any]) -> Service:
        root = self.folder / "roots" / name
        places = {source: self.volume(source) for source in self.document["volumes"]}
        mounts: dict[str, Path] = {}
        for text in spec.get("volumes", ()):
            source, target = text.split(":")[:2]
            mounts[target] = places.get(source) or self._copy(name, DOCKER / source)
        for folder in self._image.folders:
            (root / folder[1:]).mkdir(parents=True, exist_ok=True)
        for target, file in self._image.files.items():
            shutil.copy(file, root / target[1:])
            self._rewrite(name, root / target[1:], mounts, root)
        for target, place in mounts.items():
            at = root / target[1:]
            if at.is_dir():
                at.rmdir()
            at.symlink_to(place)
            if place not in places.values():
                self._rewrite(name, place, mounts, root)

        def mine(text: str) -> str:
            return self._translate(name, text, mounts, root)

        env = {key: os.environ[key] for key in _OF_THE_MACHINE if key in os.environ}
        env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', os.defpath)}"
        env |= {"HOME": str(root), "JAVA_HOME": ensure_java_home(), "PYTHONPATH": str(ROOT)}
        env |= {key: mine(value) for key, value in {**self._image.env, **spec.get("environment", {})}.items()}
        if "SPARK_CONF_DIR" in env:  # a container has one address, and all of it is its own
            env["SPARK_LOCAL_IP"] = self.spark_host
        command = [mine(word) for word in spec["command"]]
        if "--host" in command:  # its own name
            command[command.index("--host") + 1] = self.spark_host
        health = spec.get("healthcheck", {}).get("test", [])
        assert not health or health[0] == "CMD"
        log = self.folder / f"{name}.log"
        return Service(name, spec, root, env, command, [mine(word) for word in health[1:]], log)

    def _copy(self, name: str, source: Path) -> Path:
        target = self.folder / "mounts" / name / source.name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        target.parent.mkdir(parents=True, exist_ok=True)
        copy(source, target)
        return target

    def _rewrite(self, name: str, path: Path, mounts: Mapping[str, Path], root: Path) -> None:
        for file in path.rglob("*.*") if path.is_dir() else [path]:
            if file.suffix in (".py", ".sh", ".yaml"):
                file.write_text(self._translate(name, file.read_text(), mounts, root))

    def _translate(self, name: str, text: str, mounts: Mapping[str, Path], root: Path) -> str:
        """A text of the file, or of the image, as this machine needs it."""
        base = _base(name)
        own = {port: address for (member, port), address in self._ports.items() if member == name}
        if text in ("0.0.0.0", "localhost"):
            return self.spark_host if text == "localhost" else "127.0.0.1"
        if text.isdigit() and int(text) in own:
            return str(own[int(text)][1])
        for (member, port), (host, number) in self._ports.items():
            if member == name or _base(member) != base:
                text = re.sub(rf"(?<![\w.-]){_base(member)}:{port}(?!\d)", f"{host}:{number}", text)
        folders = {**{folder: root / folder[1:] for folder in ("/opt/airflow", "/opt/spark", "/data/lake")}, **mounts}
        pattern = "|".join(map(re.escape, sorted(folders, key=len, reverse=True)))
        return re.sub(rf"(?<![\w./-])({pattern})(?![\w.-])", lambda m: str(folders[m[1]]), text)


def _base(name: str) -> str:
    """The service of one of its replicas."""
    return re.sub(r"-\d+$", "", name)
