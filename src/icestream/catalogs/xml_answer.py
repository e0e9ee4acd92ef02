"""Answers of AWS services and of stores that speak as they do, in XML. Pure."""

from __future__ import annotations

from xml.etree import ElementTree


def element_text(answer: bytes, name: str) -> str:
    """Returns the text of the first element of this name, whatever its namespace; empty if there is none."""
    try:
        root = ElementTree.fromstring(answer)  # of the store that we trust with all data, and bounded
    except ElementTree.ParseError:
        return ""
    return next((element.text or "" for element in root.iter() if element.tag.rpartition("}")[2] == name), "")
