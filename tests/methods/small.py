"""Settings that make a method quick on the toy problem; without an entry the defaults serve."""

from typing import Any

SMALL: dict[str, dict[str, Any]] = {}
