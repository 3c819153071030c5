"""An HTML page as a tree."""

from __future__ import annotations

import base64
import gzip
import json
from html.parser import HTMLParser
from typing import Any
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


def packed_json(page: Element, name: str) -> Any:
    """Return the data that the report holds compressed in the script element of an id: its figures, or its trials."""
    script = page.find(f".//script[@id='{name}']")
    assert script is not None
    return json.loads(gzip.decompress(base64.b64decode(script.text or "")))
