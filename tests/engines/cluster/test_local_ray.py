"""What is said of Ray's command line when it fails."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from onward.engines.cluster import local_ray
from onward.errors import SetupError

TRACEBACK = """Traceback (most recent call last):
  File "ray/_private/parameter.py", line 343, in update_pre_selected_port
    raise ValueError(
ValueError: Ray component worker_ports is trying to use a port number 18121 that is used by other components.
If you allocate ports, please make sure the same port is not used by multiple components.
"""


@pytest.mark.parametrize(
    ("stderr", "stdout", "reason"),
    [
        (
            TRACEBACK,
            "Local node IP: \x1b[1m10.0.0.5\x1b[22m\n",
            "ValueError: Ray component worker_ports is trying to use",
        ),
        ("", "a\nb\n\x1b[31mc\x1b[39m\n\nd\n", "b c d `ray stop`"),
        ("a.py:1: FutureWarning: b\n", "c\nd\ne\n", "c d e `ray stop`"),
        ("\n", "", "without a word"),
    ],
    ids=["traceback", "words", "words after a warning", "nothing"],
)
def test_the_reason_is_what_ended_it(
    stderr: str, stdout: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ended = SimpleNamespace(returncode=1, stderr=stderr, stdout=stdout)
    monkeypatch.setattr(local_ray, "find_spec", lambda name: name)
    monkeypatch.setattr(subprocess, "run", lambda *command, **options: ended)
    with pytest.raises(SetupError) as caught:
        local_ray.start_head(18121, {})
    assert f"`ray start` failed: {reason}" in str(caught.value) and "\x1b" not in str(caught.value)
