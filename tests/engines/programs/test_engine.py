"""Models whose engine is a program that Onward starts: a stand-in for llama-server, which dies, hangs, and fails."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from onward.backends.embedded import EmbeddedBackend
from onward.completions.plan import ServedModel
from onward.compose import compose
from onward.compose.backend import start_engine
from onward.engines.cluster.config import parse_config
from onward.engines.cluster.engine import ClusterEngine
from onward.engines.cluster.members import Members
from onward.engines.programs import engine
from onward.engines.programs.engine import ProgramEngine
from onward.engines.upstreams.llama_server import LlamaServer
from onward.errors import SetupError
from onward.settings import Settings
from tests.engines.cluster.local_transport import LocalReplica, LocalTransport
from tests.engines.programs.fake_program import executable
from tests.engines.programs.test_process import has_ended
from tests.engines.upstreams.byte_model import find_llama_server, write_byte_model
from tests.engines.upstreams.harness import complete
from tests.examples import slow_but
from tests.toy_backend import backend_of
from tests.waiting import PATIENCE_SECONDS, until

if TYPE_CHECKING:
    from onward.engines.programs.process import ProgramProcess

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="programs are not started on Windows")
Test = Callable[[EmbeddedBackend, ProgramEngine], Coroutine[Any, Any, Any]]


def settings(folder: Path, *prefix: str, **more: Any) -> Settings:
    program, model = executable(folder, *prefix), write_byte_model(folder / "m.gguf")
    fields: dict[str, Any] = {
        "model": (str(model),),
        "engine": (("", "llama.cpp"),),
        "engine_path": (("llama.cpp", program),),
    }
    return Settings(**{**fields, **more})


def on(settings: Settings, test: Test, progress: Callable[[str], None] = lambda sentence: None) -> Any:
    """Run an async test with a backend whose model m is computed by the program."""

    async def run() -> Any:
        backend = await asyncio.to_thread(compose, settings, progress)
        program = backend.served["m"].engine
        assert isinstance(program, ProgramEngine)
        try:
            return await asyncio.wait_for(test(backend, program), PATIENCE_SECONDS)
        finally:
            await backend.aclose()
            assert program.pid is not None
            await until(lambda: has_ended(program.pid or 0), "the end of the program")

    return asyncio.run(run())


def end_silence(program: ProgramEngine) -> bool:
    """Have the connections that wait for tokens find that they have waited too long. Returns whether there were any."""

    async def end() -> bool:
        assert program._pool is not None
        [address] = program._pool.addresses
        assert isinstance(address.upstream, LlamaServer)
        client = address.upstream._connection._http
        waiting = [wire for wire in client._connections if wire._is_busy and wire._silence == client._silence_seconds]
        for wire in waiting:
            wire._active_at = -math.inf
            wire._check()
        return bool(waiting)

    return program._thread.run(end())


def test_a_program_loads_and_computes_a_model(tmp_path: Path) -> None:
    stages: list[str] = []

    async def test(backend: EmbeddedBackend, program: ProgramEngine) -> None:
        answer = await complete(backend, model="m", prompt="x", max_tokens=3)
        assert answer.choices[0].text == "bcd"
        assert answer.system_fingerprint is not None and answer.system_fingerprint.startswith("fp_llama_server_")
        assert program.info.max_rows == 1, "it has two slots, and --max-rows is 1"

    on(settings(tmp_path, max_rows=1), test, stages.append)
    assert stages[:1] == ["Loading m in llama-server"]
    assert "Loading m in llama-server: 42 %" in stages


@pytest.mark.parametrize("number", slow_but([signal.SIGKILL], [signal.SIGKILL, signal.SIGTERM]))
def test_requests_continue_when_the_program_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    gate = tmp_path / "gate"

    async def test(backend: EmbeddedBackend, program: ProgramEngine) -> tuple[str, str]:
        gate.touch()
        undisturbed = await complete(backend, model="m", prompt="x", max_tokens=40)
        gate.unlink()
        before, first = program.load.num_decode_tokens, program.pid
        running = asyncio.create_task(complete(backend, model="m", prompt="x", max_tokens=40))
        await until(lambda: program.load.num_decode_tokens > before)
        assert first is not None
        os.killpg(first, number)
        gate.touch()
        disturbed = await running
        await until(lambda: program.pid != first and program.state.status == "running")
        await until(lambda: has_ended(first), "the end of the first program")
        await until(lambda: program.load.recoveries.num_recoveries)
        assert program.load.recoveries.num_crashes == 1
        return undisturbed.choices[0].text, disturbed.choices[0].text

    undisturbed, disturbed = on(settings(tmp_path, f"--gate={gate}"), test)
    assert disturbed == undisturbed


@pytest.mark.slow
def test_an_idle_program_that_is_lost_is_recovering_until_the_next_one_answers(tmp_path: Path) -> None:
    async def test(backend: EmbeddedBackend, program: ProgramEngine) -> None:
        first = program.pid
        assert first is not None
        os.killpg(first, signal.SIGKILL)
        await until(lambda: program.state.status == "recovering")
        assert "llama-server was lost: it was ended by SIGKILL" in (program.state.crash_reason or "")
        await until(lambda: program.state.status == "running")
        assert (await complete(backend, model="m", prompt="x", max_tokens=3)).choices[0].text == "bcd"

    on(settings(tmp_path), test)


def test_a_program_that_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "HANG_SECONDS", 0.0)

    async def test(backend: EmbeddedBackend, program: ProgramEngine) -> None:
        first = program.pid
        assert first is not None
        os.killpg(first, signal.SIGSTOP)
        answering = asyncio.create_task(complete(backend, model="m", prompt="x", max_tokens=3))
        await until(lambda: end_silence(program))
        await until(lambda: program.load.recoveries.num_hangs)
        monkeypatch.setattr(engine, "HANG_SECONDS", PATIENCE_SECONDS)  # the next one may be slow
        assert (await answering).choices[0].text == "bcd"
        assert program.pid != first
        assert program.load.recoveries.num_hangs == 1

    on(settings(tmp_path), test)


@pytest.mark.slow
def test_a_program_that_answers_and_computes_nothing_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer of the server is no sign that its engine works."""
    monkeypatch.setattr(engine, "ILL_SECONDS", 0.0)
    stuck = tmp_path / "stuck"

    async def test(backend: EmbeddedBackend, program: ProgramEngine) -> None:
        first = program.pid
        program._engine_timeout = 1e-9  # of its engine; its server has as long as always
        stuck.touch()
        answering = asyncio.create_task(complete(backend, model="m", prompt="x", max_tokens=3))
        await until(lambda: end_silence(program))
        await until(lambda: program.load.recoveries.num_hangs or answering.done())
        stuck.unlink()
        monkeypatch.setattr(engine, "ILL_SECONDS", PATIENCE_SECONDS)  # the next one may be slow
        assert (await answering).choices[0].text == "bcd"
        assert program.pid != first

    on(settings(tmp_path, f"--stuck={stuck}"), test)


@pytest.mark.slow
def test_a_program_that_hangs_while_it_loads_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mute = tmp_path / "mute"

    async def test(backend: EmbeddedBackend, program: ProgramEngine) -> None:
        assert program.pid is not None
        mute.touch()
        monkeypatch.setattr(engine, "MUTE_SECONDS", 0.0)
        os.killpg(program.pid, signal.SIGKILL)
        await until(lambda: program.load.recoveries.num_hangs)
        mute.unlink()
        monkeypatch.setattr(engine, "MUTE_SECONDS", PATIENCE_SECONDS)
        assert (await complete(backend, model="m", prompt="x", max_tokens=3)).choices[0].text == "bcd"

    on(settings(tmp_path, f"--mute={mute}"), test)


def test_a_program_that_hangs_when_it_is_first_started_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MUTE_SECONDS", 0.0)
    mute = tmp_path / "mute"
    mute.touch()
    with pytest.raises(SetupError, match=r"^llama-server could not load m: it printed nothing for 0 minutes\.$"):
        compose(settings(tmp_path, f"--mute={mute}"))


@pytest.mark.parametrize(
    ("seconds", "silent_for", "num_tokens", "is_hung"),
    [
        (59, 59, 0, False),
        (60, 60, 0, True),
        (60, 1e9, 0, True),  # counted from the loss, whatever came before
        (359, 28, 0, False),  # it answers, and the requested token waits for a long step of its engine
        (300, 61, 0, True),
        (361, 0, 0, True),  # it answers, and its engine computes nothing
        (361, 0, 1, False),  # it computes for another request
    ],
)
def test_a_program_hangs_if_it_is_silent_and_computes_nothing_for_long_enough(
    seconds: float, silent_for: float, num_tokens: int, is_hung: bool
) -> None:
    run = engine._Run(cast("ProgramProcess", None), 0.0, 0)
    assert not run.is_hung(1000.0, 1000.0 - silent_for, 5, engine.ILL_SECONDS)
    now = 1000.0 + seconds
    assert run.is_hung(now, now - silent_for, 5 + num_tokens, engine.ILL_SECONDS) is is_hung


def test_a_program_that_cannot_load_its_model_says_why(tmp_path: Path) -> None:
    with pytest.raises(SetupError) as raised:
        compose(settings(tmp_path, "--ends='CUDA error: out of memory'"))
    assert str(raised.value) == (
        "llama-server could not load m: memory ran out (its last line: 'CUDA error: out of memory')."
    )


def test_an_interrupt_while_it_loads_waits_for_no_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_waited, main = False, threading.main_thread().ident or 0

    def is_waiting() -> bool:
        """Whether the main thread waits for the program: earlier, the test could not fail."""
        frame = sys._current_frames()[main]
        return (frame.f_code.co_name, Path(frame.f_code.co_filename).name) == ("wait", "threading.py")

    async def probe(engine: ProgramEngine) -> None:
        nonlocal has_waited
        await until(is_waiting)
        signal.pthread_kill(main, signal.SIGINT)
        await asyncio.sleep(PATIENCE_SECONDS)
        has_waited = True

    monkeypatch.setattr(ProgramEngine, "_probe", probe)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            compose(settings(tmp_path))
    finally:
        signal.signal(signal.SIGINT, before)
    assert not has_waited


@pytest.mark.slow
def test_a_program_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError) as raised:
        compose(settings(tmp_path, "--space"))
    assert str(raised.value).startswith("The engine of m cannot be used: unix:")
    assert "its tokenizer is not that of m: llama-server reads the same files differently" in str(raised.value)


@pytest.mark.slow
def test_a_program_that_prints_garbage_is_not_blocked(tmp_path: Path) -> None:
    async def test(backend: EmbeddedBackend, program: ProgramEngine) -> None:
        assert (await complete(backend, model="m", prompt="x", max_tokens=1)).choices[0].text == "b"

    on(settings(tmp_path, "--garbage"), test)


@pytest.mark.slow  # the pauses between the starts
def test_a_program_that_ends_again_and_again_is_given_up_and_other_models_continue(tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    lives.write_text("x", encoding="utf-8")

    async def test(backend: EmbeddedBackend, program: ProgramEngine) -> None:
        assert program.pid is not None
        os.killpg(program.pid, signal.SIGKILL)
        await until(lambda: program.state.status == "crashed")
        assert "llama-server was lost repeatedly without any progress" in (program.state.crash_reason or "")
        answer = await complete(backend, model="toy", prompt="x", max_tokens=3)
        assert answer.choices[0].finish_reason == "length"

    fields = settings(tmp_path, f"--lives={lives}")
    [model] = fields.model
    on(replace(fields, model=(model, "toy"), engine=((model, "llama.cpp"),)), test)


@pytest.mark.slow
def test_a_real_llama_server_is_started_killed_and_continues(tmp_path: Path) -> None:
    program = Path(find_llama_server())

    async def test(backend: EmbeddedBackend, engine: ProgramEngine) -> tuple[str, str]:
        fields: dict[str, Any] = {"model": "m", "prompt": "x", "max_tokens": 400, "ignore_eos": True}
        undisturbed = await complete(backend, **fields)
        running = asyncio.create_task(complete(backend, **fields))
        await until(lambda: engine.load.num_running)
        assert engine.pid is not None
        os.killpg(engine.pid, signal.SIGKILL)
        return undisturbed.choices[0].text, (await running).choices[0].text

    undisturbed, disturbed = on(settings(tmp_path, engine_path=(("llama.cpp", program),)), test)
    assert disturbed == undisturbed


def test_the_folder_of_its_socket_is_private_and_goes_with_it(tmp_path: Path) -> None:
    async def test(backend: EmbeddedBackend, program: ProgramEngine) -> Path:
        assert program._pool is not None
        socket = Path(program._pool.addresses[0].url.removeprefix("unix:"))
        assert socket.is_socket()
        assert socket.parent.stat().st_mode & 0o777 == 0o700
        return socket.parent

    assert not on(settings(tmp_path), test).exists()


@pytest.mark.slow
def test_replicas_of_a_cluster_may_be_programs(tmp_path: Path) -> None:
    """Two replicas of one cluster.toml; one is lost with its program, and the other continues the text."""
    gate = tmp_path / "gate"
    program, model = executable(tmp_path, f"--gate={gate}"), write_byte_model(tmp_path / "m.gguf")
    table = {"model": str(model), "engine": "llama.cpp", "engine_path": [f"llama.cpp={program}"], "max_rows": 2}
    [config] = parse_config({"model": [table]}, "cluster.toml")

    async def run() -> tuple[str, str]:
        with ExitStack() as on_failure:
            replicas = []
            for name in "ab":
                served = start_engine(config.settings(), print, on_failure)  # on an event loop, as Ray does it
                assert isinstance(served.engine, ProgramEngine)
                replicas.append(LocalReplica(name, engine=served.engine))
            transport, info = LocalTransport(*replicas), replicas[0].info
            assert info.fingerprint.startswith("fp_llama_server_") and info.max_rows == 2
            client = ClusterEngine("m", transport, info, Members("toy", info.context_length), wait_seconds=30.0)
            plan_model = ServedModel.create("m", served.tokenizer, info.vocab_size, info.context_length, info.lacks)
            backend = backend_of(client, plan_model)
            gate.touch()
            undisturbed = await complete(backend, model="m", prompt="x", max_tokens=60)
            gate.unlink()
            before = {replica.name: replica.thread.load.num_decode_tokens for replica in replicas}
            running = asyncio.create_task(complete(backend, model="m", prompt="x", max_tokens=60))
            await until(lambda: any(each.thread.load.num_decode_tokens > before[each.name] for each in replicas))
            lost = transport.calls[-1]
            transport.kill(lost)
            gate.touch()
            disturbed = await running
            assert transport.calls[-1] != lost
            await backend.aclose()
        return undisturbed.choices[0].text, disturbed.choices[0].text

    undisturbed, disturbed = asyncio.run(run())
    assert disturbed == undisturbed
