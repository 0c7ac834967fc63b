"""The documentation as a site: ``python -m tests.site`` builds it into ``build/site``, and fails if something is wrong.

The pages lie in several folders of the checkout and link to each other there, so they are copied as they lie, with the
list of rules, which is only made for the site. Then mkdocs.yml is built by Zensical, strictly, and the result is
checked: each local link leads to a file and, if it names one, to an anchor, and nothing is loaded from another host.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests import ROOT, mutate

PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
#: Files and folders of the checkout that are pages, or that pages link to.
SOURCES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "RELEASING.md", "dags", "docker", "docs")
#: Addresses in the theme's scripts from which a browser would load what no page has: diagrams, galleries, consoles.
_FOREIGN = re.compile(r"https?://(?:unpkg\.com|cdn\.jsdelivr\.net|api\.github\.com)/")
_NAMES = re.compile(r"https?://www\.w3\.org/[\w/]+")  # of XML: nothing is loaded from there
#: Attributes whose addresses a browser loads automatically; ``a`` and ``form`` are not among them.
_LOADED = {"src", "srcset", "data", "poster", "manifest", "background"}


class _Page(HTMLParser):
    """Anchors and addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif name in _LOADED or (name == "href" and tag in ("link", "use", "image", "base")):
                self.loaded.append(value)
            elif name == "href":
                self.links.append(value)


def collect_pages() -> None:
    """Copy all pages and what they link to, and write the list of rules."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, PAGES / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        else:
            PAGES.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, PAGES / name)
    (PAGES / "docs" / "rules.md").write_text(mutate.page(mutate.mutations()))


def keep_to_this_host(site: Path) -> None:
    """Cut from the theme's scripts the addresses of other hosts from which they could load something."""
    for script in site.rglob("*.js"):
        text = script.read_text()
        if _FOREIGN.search(text):
            script.write_text(_FOREIGN.sub("/not-loaded/", text))


def find_problems(site: Path) -> Iterator[str]:
    """Yield what is wrong with a site: a link that leads nowhere, or something that is loaded from another host."""
    pages = {path: _Page(path.read_text()) for path in site.rglob("*.html")}
    for path, page in pages.items():
        for address in [*page.links, *page.loaded]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in page.loaded and parts.scheme != "data":
                    yield f"{path.relative_to(site)}: {address} is loaded from another host"
                continue
            if path.name == "404.html":
                continue  # its addresses begin at the root of a host that is not known
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                yield f"{path.relative_to(site)}: {address} leads to no file"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{path.relative_to(site)}: {address} leads to no heading"
    for path in site.rglob("*"):
        if path.suffix in (".css", ".js", ".svg"):
            text = _NAMES.sub("", path.read_text())
            wanted = (
                r"https?://[\w.-]+\.\w+" if path.suffix == ".js" else r"(?:url\(|@import|href=)\s*[\"']?https?:[^)\"']*"
            )
            for found in re.findall(wanted, text):
                yield f"{path.relative_to(site)}: {found} is on another host"


def main() -> int:
    """Build the site; 1 if something is wrong with it."""
    collect_pages()
    shutil.rmtree(SITE, ignore_errors=True)
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        print(re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr))
        return 1
    keep_to_this_host(SITE)
    found = sorted(find_problems(SITE))
    done_text = f"{SITE.relative_to(ROOT)}: right. To search in it: python -m http.server -d {SITE.relative_to(ROOT)}"
    print("\n".join(found) or done_text)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
