"""Package metadata that depends on where the project is published: its URLs, and the links of its readme.

The readme links to other pages of the repository by relative paths, which lead nowhere on a package index. With the
variable PACKAGE_REPOSITORY_URL, which the release workflow sets, the package's readme links to the files of this
version in that repository, and its metadata has project URLs. Without it, the package's readme keeps the words of
such links and drops the links.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE_LINK = re.compile(r"(?P<image>!?)\[(?P<words>[^\]]*)\]\((?!\w+:|#)(?P<path>[^)\s]+)\)")
_PAGES = {"Documentation": "README.md", "Changelog": "CHANGELOG.md"}


class Metadata(MetadataHookInterface):
    """Fills in what pyproject.toml declares as dynamic: readme and urls."""

    def update(self, metadata: dict[str, Any]) -> None:
        files = _files_url(os.environ.get("PACKAGE_REPOSITORY_URL", ""), metadata["version"])
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": package_readme(text, files)}
        metadata["urls"] = project_urls(os.environ.get("PACKAGE_REPOSITORY_URL", ""), files)


def package_readme(text: str, files: str) -> str:
    """Return the readme with its relative links below `files`, a URL that ends in a slash; without links if empty."""
    return _RELATIVE_LINK.sub(rf"\g<image>[\g<words>]({files}\g<path>)" if files else r"\g<words>", text)


def project_urls(repository: str, files: str) -> dict[str, str]:
    """Return the project's URLs by label; none without a repository."""
    if not repository:
        return {}
    pages = {label: files + path for label, path in _PAGES.items()}
    return {"Repository": repository, "Issues": f"{repository}/issues", **pages}


def _files_url(repository: str, version: str) -> str:
    return f"{repository}/blob/v{version}/" if repository else ""
