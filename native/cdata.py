"""The type of cffi's objects; cffi itself has no type hints."""

from typing import Any

CData = Any
"""A pointer, a struct or an array of C. Its attributes and items are those that the header says."""
