"""An HTML page as a tree."""

from __future__ import annotations

from html.parser import HTMLParser
from xml.etree.ElementTree import Element, TreeBuilder

_VOID = {"meta", "link", "br", "hr", "img", "input"}


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tree = TreeBuilder()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tree.start(tag, {name: value or "" for name, value in attrs})
        if tag in _VOID:
            self.tree.end(tag)

    def handle_endtag(self, tag: str) -> None:
        self.tree.end(tag)

    def handle_data(self, data: str) -> None:
        self.tree.data(data)


def parse_html(text: str) -> Element:
    """Return the root of a page whose tags are all closed; every end tag must match its start tag."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    return reader.tree.close()


def text_of(element: Element | None) -> str:
    """Return the text inside an element, with single spaces."""
    assert element is not None
    return " ".join(" ".join(element.itertext()).split())
