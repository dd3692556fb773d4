"""Names as parts of a path."""

from typing import Any
from urllib.parse import quote


def at(name: Any) -> str:
    return quote(str(name), safe="")
