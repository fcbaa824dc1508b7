"""Every link within a site of HTML files leads to a file, and every fragment to an element of it.

python docs/links.py docs/_build/html

prints what is broken and ends with 1 if anything is. Sphinx judges the links that it knows; this judges what a reader
gets, pages and figures that were copied among them. Links that leave the site are for `make docs-external`.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LINKS = {"a": "href", "link": "href", "img": "src", "script": "src", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """The links of a page, and the places within it that links can lead to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note where an element leads, and what it is called."""
        for name, value in attrs:
            if value and name == LINKS.get(tag):
                self.links.append(value)
            if value and (name == "id" or (tag == "a" and name == "name")):
                self.places.add(value)


def broken(site: Path) -> list[str]:
    """``page: link`` for each link within ``site`` that leads nowhere."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            fragment = unquote(parts.fragment)
            missing = fragment and target in pages and fragment not in pages[target].places
            if missing or not target.exists():
                found.append(f"{path.relative_to(site.resolve())}: {link}")
    return found


if __name__ == "__main__":
    found = broken(Path(sys.argv[1]))
    print("\n".join(found) or "every link within the site leads somewhere")
    sys.exit(bool(found))
