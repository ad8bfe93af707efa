"""What all benchmarks share: their command line, the report that `--json` names, errors of runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks import measure


def test_each_report_replaces_the_last_and_has_command_and_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "report.json"

    def main(options: argparse.Namespace, report: measure.Report) -> int:
        report({"rows": 0})
        report({"rows": options.rows})
        return 3

    parser = measure.parser("bare", "How fast.")
    parser.add_argument("--rows", type=int)
    monkeypatch.setattr(sys, "argv", ["ignored", "--rows", "2", "--json", str(path)])
    with pytest.raises(SystemExit) as ended:
        measure.run(parser, main)
    found = msgspec.json.decode(path.read_bytes())
    assert ended.value.code == 3 and found["figures"] == {"rows": 2}
    assert found["command"] == f"python -m benchmarks.bare --rows 2 --json {path}"
    assert found["machine"]["cores"] > 0 and found["machine"]["date"]


def test_without_a_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ignored"])
    with pytest.raises(SystemExit) as ended:
        measure.run(measure.parser("bare", None), lambda options, report: report({"rows": 1}))
    assert not ended.value.code and list(tmp_path.iterdir()) == []


def test_an_error_of_a_run_is_printed_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise measure.BenchmarkError("requests failed: {'timeout': 2}")

    with pytest.raises(SystemExit) as ended:
        measure.run_main(fail)
    assert ended.value.code == 1
    assert capsys.readouterr().err == "error: requests failed: {'timeout': 2}\n"
