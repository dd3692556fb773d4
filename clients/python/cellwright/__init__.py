"""A client of the public API of a Cellwright cell. Standard library alone, Python 3.11 or newer."""

from .client import ApiError, Cell, CellError, Event, Unknown, Unreachable

__all__ = ["ApiError", "Cell", "CellError", "Event", "Unknown", "Unreachable"]
