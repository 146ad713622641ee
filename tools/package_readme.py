"""The README of the package, as an index shows it: there, paths of this repository lead nowhere.

Hatchling calls it when it builds. Where ``[project.urls]`` names a Repository, images and links
become addresses there; without one, images are left out and links are plain text.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_IMAGE = re.compile(r"!\[([^\]]*)\]\((?!https?://)([^)]+)\)\n?")
_CAPTION_AFTER = re.compile(r"(!\[[^\]]*\]\((?!https?://)[^)]+\)\n)\n\*.*?\*\n", re.S)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?://|#)([^)]+)\)")


def safe(text: str, repository: str | None) -> str:
    """The README without a path that only this repository has."""
    if repository is None:
        text = _IMAGE.sub("", _CAPTION_AFTER.sub(r"\1", text))
        return _LINK.sub(r"\1", text)
    text = _IMAGE.sub(rf"![\1]({repository}/raw/main/\2)\n", text)
    return _LINK.sub(rf"[\1]({repository}/blob/main/\2)", text)


class PackageReadme(MetadataHookInterface):
    """Sets ``readme`` of the package's metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        readme = {"content-type": "text/markdown", "text": safe(text, repository)}
        metadata["readme"] = readme
