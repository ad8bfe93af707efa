"""The harness counts correctly, on the toy model and with tiny settings. Speed is not tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from benchmarks.bare import BareLoop, random_prompts
from benchmarks.compare import alternate
from benchmarks.engine import BARE, Round, compare
from benchmarks.http_client import Target
from benchmarks.in_process import InProcess
from benchmarks.load import Bounds, LoadGenerator, run_async
from benchmarks.models import find_model, load
from benchmarks.outcome import Outcome
from benchmarks.processes import kv_cache_bytes, resident_memory
from benchmarks.server_process import serve
from benchmarks.startup import cold_cache, parse_importtime, peak_megabytes
from benchmarks.workload import Workload

from benchmarks import engine, interleave, measure, render
from onward.kernels.memory import Rows
from onward.model_files.toy import ToyTokenizer
from onward.runtimes.toy.model import ToyModel

LETTERS = (97, 123)


def test_the_engine_in_process_ends_every_job_and_counts_full_steps() -> None:
    prompts = np.random.default_rng(1).integers(*LETTERS, (6, 40)).tolist()
    run = InProcess(ToyModel(), ToyTokenizer()).run(prompts, 8, clients=3)
    assert [outcome.tokens for outcome in run.outcomes] == [8] * 6
    assert all(len(outcome.gaps) == outcome.chunks - 1 for outcome in run.outcomes)
    assert 0 < len(run.full_steps) <= 14


@pytest.mark.slow
def test_load_on_a_real_server_closed_and_open() -> None:
    workload = Workload("toy", prompt=20, tokens=LETTERS, out=5)
    with serve("toy") as server:
        target = Target.parse(server.url)
        closed = run_async(lambda: LoadGenerator(target, workload, Bounds(6)).closed_loop(2))
        poisson = run_async(lambda: LoadGenerator(target, workload, Bounds(4), first_prompt=6).poisson(200.0))
        unknown = run_async(lambda: LoadGenerator(target, Workload("nobody"), Bounds(2)).closed_loop(1))
        memory = resident_memory(server.pid)
    assert [outcome.tokens for outcome in closed + poisson] == [5] * 10
    assert [outcome.error for outcome in unknown] == ["status 404"] * 2
    assert memory is None or memory["peak"] >= memory["anonymous"] > 0


SMAPS = """\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
Rss:                2048 kB
Pss:                2048 kB
VmFlags: rd wr mr mw me ac hg
7f0000400000-7f0000500000 rw-p 00000000 00:00 0 [heap]
Rss:                1024 kB
VmFlags: rd wr mr mw me ac nh
7f0000500000-7f0000501000 r--p 00000000 08:01 13 /lib/a name with hg
Rss:                   4 kB
VmFlags: rd mr mw me
7f0000600000-7f0000a00000 rw-p 00000000 00:00 0
Rss:                  12 kB
VmFlags: rd wr mr mw me ac hg mg
7f0000b00000-7f0000c00000 rw-p 00000000 00:00 0                          [heap]
Rss:                1024 kB
VmFlags: rd wr mr mw me ac hg
"""


def test_the_kv_cache_is_distinguished_from_other_memory() -> None:
    assert kv_cache_bytes(SMAPS) == 2060 * 1024
    assert kv_cache_bytes("") == 0


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="Linux with transparent huge pages only"
)
def test_only_the_written_part_of_a_kv_cache_is_resident() -> None:
    tensor_bytes = 2**24

    def kv_bytes() -> int:
        found = resident_memory(os.getpid())
        assert found is not None
        return found["kv"]

    before = kv_bytes()
    cache = Rows.exactly(tensor_bytes // 2**20, 2**20)
    assert kv_bytes() == before
    cache.memory[3] = 1
    assert 0 < kv_bytes() - before <= tensor_bytes // 2


def test_no_request_starts_after_the_time_limit() -> None:
    generator = LoadGenerator(Target("127.0.0.1", 9, "/"), Workload("m"), Bounds(5, seconds=-1.0))
    assert run_async(lambda: generator.closed_loop(2)) == []


def test_a_missing_server_fails_the_requests_but_not_the_run() -> None:
    generator = LoadGenerator(Target("127.0.0.1", 1, "/"), Workload("m"), Bounds(2))
    outcomes = run_async(lambda: generator.closed_loop(1))
    assert len(outcomes) == 2 and all(outcome.error for outcome in outcomes)


def test_arms_alternate_and_the_warm_up_round_is_discarded() -> None:
    order: list[str] = []

    def arm(name: str, rate: float) -> Round:
        order.append(name)
        return Round(rate, None)

    arms = {BARE: lambda waves: arm(BARE, 100.0), "engine": lambda waves: arm("engine", 90.0)}
    rounds = alternate(arms, 2, 1)
    assert order == [BARE, "engine", "engine", BARE, BARE, "engine"] and len(rounds) == 2
    assert compare(rounds)["engine"]["of_bare"]["median"] == pytest.approx(0.9)


def test_computations_are_interleaved_and_each_clock_is_stopped_between_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    order: list[str] = []

    def steps(name: str, count: int, seconds: float) -> interleave.Stepwise[str]:
        nonlocal now
        for _ in range(count):
            order.append(name)
            now += seconds
            yield
        return name.upper()

    clocks = [interleave.TurnClock(), interleave.TurnClock()]
    computations = {"a": (steps("a", 5, 1.0), clocks[0]), "b": (steps("b", 3, 4.0), clocks[1])}
    assert interleave.interleave(computations, seconds=2.0) == {"a": "A", "b": "B"}
    assert "".join(order) == "aabaabab"
    assert [clock() for clock in clocks] == [5.0, 12.0]


def test_ratios_are_taken_within_a_round() -> None:
    rounds = [
        {BARE: Round(100.0, 10.0), "engine": Round(50.0, 9.0)},
        {BARE: Round(10.0, 1.0), "engine": Round(9.0, 0.5)},
        {BARE: Round(1.0, 1.0), "engine": Round(0.8, 0.8)},
    ]
    found = compare(rounds)["engine"]
    assert (found["of_bare"]["median"], found["of_bare"]["least"]) == (0.8, 0.5)
    assert found["decode_of_bare"]["median"] == 0.8
    assert "steady_of_bare" not in found, "no round measured it"


def test_rendering_figures_into_the_page_is_idempotent() -> None:
    outcome = Outcome(0.0, 1.0, ttft=0.25, gaps=[0.1], tokens=2, chunks=2)
    parts = {"model": 100_000.0, "the rest": 11_111.1}
    rounds = [{BARE: Round(10.0, 10.0), "engine": Round(9.0, 9.5, [outcome], 9.2, parts)}]
    figures = {"clients": {"1": compare(rounds)}, "memory": None}
    machine = dict.fromkeys(("cpu", "cores", "system", "python", "llvmlite", "load", "date"), "x")
    report = {"command": "python -m it", "machine": machine | {"memory_gib": 1.0}, "figures": figures}
    page = f"before\n{render.BEGIN}\nold\n{render.END}\nafter\n"
    filled = render.fill(page, {"engine": json.loads(json.dumps(report)), "startup": None})
    assert (
        "| 1 | engine | 9 | 90.0% (90.0% to 90.0%) | 92.0% (92.0% to 92.0%) | 95.0% | 250.0 / 250.0 | 100.0 / 100.0 |"
        in filled
    )
    assert "| clients | engine: model | engine: the rest |\n|--:|--:|--:|\n| 1 | 100,000 | 11,111 |" in filled
    assert "`python -m it`" in filled and render.NOT_YET in filled and "old" not in filled
    assert render.fill(filled, {"engine": report, "startup": None}) == filled


def test_the_page_has_the_markers_for_figures() -> None:
    assert "### Start" in render.fill((render.HERE / "README.md").read_text(encoding="utf-8"), {})


def test_import_times_are_ranked_and_submodules_of_other_packages_omitted() -> None:
    output = (
        "import time: self [us] | cumulative | imported package\n"
        "import time:       100 |       1500 | numpy\n"
        "import time:        10 |       9000 |   llvmlite.ir\n"
        "import time:        10 |       2500 | onward.compose\n"
    )
    assert [entry["module"] for entry in parse_importtime(output)] == ["onward.compose", "numpy"]


def test_the_number_of_waves_depends_on_the_number_of_clients() -> None:
    assert [engine.waves_for(clients) for clients in (1, 8, 32)] == [16, 4, 4]


def test_an_unknown_model_ends_a_benchmark_with_an_error_message() -> None:
    with pytest.raises(SystemExit, match=r"^error: There is no model named 'nobody'\."):
        find_model("nobody")


def test_the_bare_loop_prefills_in_chunks_and_decodes_in_lockstep() -> None:
    model, _ = load("toy")
    length = model.shape.max_prefill_tokens + 5
    run = BareLoop(model, length + 4).run(random_prompts(model.vocab_size, 2, length, 1), 4)
    assert (run.rows, len(run.steps), run.output_tokens) == (2, 3, 8) and run.prefill > 0
    with pytest.raises(measure.BenchmarkError, match="too few for 99 sequences"):
        BareLoop(model, length).run(random_prompts(model.vocab_size, 99, length, 1), 4)


def test_a_cold_cache_has_the_models_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "models" / "m").mkdir(parents=True)
    (tmp_path / "converted").mkdir()
    with cold_cache(tmp_path) as cache:
        assert [each.relative_to(cache).as_posix() for each in cache.glob("*/*")] == ["onward/models"]
        assert (cache / "onward" / "models" / "m").is_dir()
    assert {each.name for each in tmp_path.iterdir()} == {"models", "converted"}
    assert (tmp_path / "models" / "m").is_dir()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc of Linux")
def test_peaks_are_those_of_a_process_and_its_child() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE):
        found = peak_megabytes(os.getpid())
    assert found["peak_engine"] > 0 and found["peak_server"] > 10
