"""The manual page, and the hidden commands of OpenAI's command line that packages call."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from pathlib import Path

import pytest

from onward.cli.root import COMMANDS

from ..conftest import onward


def manual(folder: Path) -> str:
    assert onward("@manpages", "-o", str(folder), "--text").exit_code == 0
    text = (folder / "man1" / "onward.1").read_bytes()
    assert gzip.decompress((folder / "man1" / "onward.1.gz").read_bytes()) == text
    return text.decode()


def test_the_manual_has_every_command_and_the_flags_of_completions(tmp_path: Path) -> None:
    text = manual(tmp_path)
    for name in COMMANDS:
        assert f'.SS "onward {name}' in text, name
    for flag in ("max-tokens", "logit-bias", "openai-names", "base-url"):
        assert "\\-\\-" + flag.replace("-", "\\-") in text, flag
    assert "@manpages" not in text
    assert text.count("\\-h, \\-\\-help") == text.count("\\-\\-help\\fR") > len(COMMANDS)


def test_without_text_only_the_compressed_page_is_written(tmp_path: Path) -> None:
    assert onward("@manpages", "--output", str(tmp_path)).stdout == f"Wrote manpages to {tmp_path}\n"
    assert [path.name for path in (tmp_path / "man1").iterdir()] == ["onward.1.gz"]


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_formats_it_without_a_warning(tmp_path: Path) -> None:
    command = ["groff", "-man", "-Tutf8", "-Kutf8", "-ww", "-z"]
    ran = subprocess.run(command, input=manual(tmp_path), capture_output=True, encoding="utf-8", timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_completion_scripts_also_have_the_name_that_packages_of_openais_tool_call() -> None:
    script = onward("@completion", "bash")
    assert script.exit_code == 0 and script.stdout == onward("completion", "bash").stdout
    assert "'pwsh' is not one of 'bash', 'zsh', 'fish'" in onward("@completion", "pwsh").stderr
