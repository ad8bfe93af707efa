"""What hatchling cannot read from pyproject.toml: metadata that depends on where the project is published (URLs, links
of the readme), and compiled kernels.

The readme links to other pages of the repository by relative paths, which lead nowhere on a package index. With the
variable PACKAGE_REPOSITORY_URL, which the release workflow sets, the package's readme links to the files of this
version in that repository, and its metadata has project URLs. Without it, the package's readme keeps the words of
such links and drops the links.

With PACKAGE_KERNELS=1, which `make package` sets, a wheel contains compiled kernels for usual processors, and with
PACKAGE_KERNELS=here, which the Dockerfile sets, for those of this machine's architecture. Without it, as where pip
builds from source, it contains none: they are compiled at the first start, those of one machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
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


class CompiledKernels(BuildHookInterface):
    """Adds kernels to a wheel that were compiled for it."""

    def dependencies(self) -> list[str]:
        """Return the packages that compile: those of the project itself."""
        names = tuple(_COMPILER) if _kernels() else ()
        return [each for each in self.metadata.core.dependencies if names and each.startswith(names)]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not _kernels():
            return
        self._folder = tempfile.TemporaryDirectory()
        source, objects = Path(self.root, "src"), Path(self._folder.name, "objects")
        command = [sys.executable, "-m", "onward.runtimes.native.packaged", str(objects)]
        command += ["--here"] if _kernels() == "here" else []
        subprocess.run(command, env=os.environ | {"PYTHONPATH": str(source)}, check=True)
        build_data["force_include"][str(objects)] = "onward/kernels/objects"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable" and _kernels():
            self._folder.cleanup()


_COMPILER = ("llvmlite", "numpy", "msgspec")


def _kernels() -> str:
    """Return for which processors a wheel has kernels: "1" for all usual ones, "here", or "" for none."""
    stated = os.environ.get("PACKAGE_KERNELS", "")
    if stated not in ("", "0", "1", "here"):
        raise ValueError(f"PACKAGE_KERNELS must be 1, here or 0, not {stated!r}")
    return stated.replace("0", "")


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
