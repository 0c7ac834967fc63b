"""A real headless Chromium: an installed one, or Debian's packages unpacked in the cache."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.packages import Packages, unpacked_packages

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: Of the system's own suite, so that the system's loader and C library serve.
CHROMIUM = Packages(
    "chromium-packages",
    "Chromium",
    250,
    ("chromium", "fonts-dejavu-core"),
    False,
    "libc6|libc-bin|libgcc-s1|gcc-.*|perl.*|libperl.*|debconf|dpkg|tar|systemd.*|adduser|passwd|chromium-sandbox|"
    "libllvm.*|mesa-.*|libgl1-mesa-.*|python3.*|libpython.*",
    "Other ways: install Chromium or Chrome so that it is in PATH, or name the program in CDC_TEST_CHROMIUM.",
)
_NAMES = ("chromium", "google-chrome", "chromium-browser")
_FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{root}/usr/share/fonts</dir><cachedir>{root}/fontcache</cachedir></fontconfig>
"""


def find_chromium() -> tuple[Path, dict[str, str]]:
    """The program, and what it needs in its environment; downloads the packages the first time.

    :raise ServerUnavailable: when there is no way to one.
    """
    if named := os.environ.get("CDC_TEST_CHROMIUM"):
        return Path(named), {}
    if found := next(filter(None, map(shutil.which, _NAMES)), None):
        return Path(found), {}
    root = unpacked_packages(CHROMIUM)
    fonts = root / "fonts.conf"
    if not fonts.exists():
        fonts.write_text(_FONTS.format(root=root))
    libraries = [folder for folder in (root / "usr/lib").glob("*-linux-gnu*") if folder.is_dir()]
    libraries += [folder for parent in libraries for folder in parent.iterdir() if folder.name in ("pulseaudio",)]
    return root / "usr/lib/chromium/chromium", {
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
        "FONTCONFIG_FILE": str(fonts),
    }


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A running browser; each test opens contexts of its own in it."""
    from playwright.sync_api import sync_playwright

    program, env = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(program), args=["--no-sandbox"], env={**os.environ, **env}
        )
        try:
            yield browser
        finally:
            browser.close()
