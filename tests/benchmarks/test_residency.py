"""The benchmark of dropped file pages compares a server that drops them with one that does not."""

from __future__ import annotations

import sys

import pytest
from benchmarks.residency import PROGRAMS, measure_program


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
def test_only_one_of_the_two_servers_drops_file_pages() -> None:
    files = {name: measure_program("toy", program)["ready"][1] for name, program in PROGRAMS.items()}
    assert files["without"] - files["with"] > 20, files
