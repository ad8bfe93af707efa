"""llama-server is found and started, and gets the same weights and the same sampling parameters."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.arms import ONWARD, PEER, Arm, Comparison, Shape, check_complete, sampling_fields
from benchmarks.compare import without_top_k
from benchmarks.edits import Edit
from benchmarks.engine import Round
from benchmarks.families import families, family_of, select
from benchmarks.llama_server import Slots, serve_peer
from benchmarks.outcome import Outcome
from benchmarks.peer_build import SERVER, PeerError, check_tools, find
from benchmarks.random_model import CONFIG, tokenizer, write
from benchmarks.server_process import Server, serve
from hypothesis import given, settings
from hypothesis import strategies as st
from training.gguf_file import TOKEN_CONTROL, TOKEN_NORMAL, TOKEN_UNUSED, interleaved, write_tokenizer

from benchmarks import compare, edit_pair, peer_tuning
from onward.model_files.formats import files_at
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.table import load_model
from tests.checkpoints.tiny import write_tiny
from tests.examples import examples


def program(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{text}", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_given_server_is_used_and_other_programs_are_in_the_same_folder(tmp_path: Path) -> None:
    server, bench = program(tmp_path, SERVER, ""), program(tmp_path, "llama-bench", "")
    assert find(SERVER, server) == server and find("llama-bench", server) == bench


def test_a_given_path_that_is_not_a_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="is not an executable program"):
        find(SERVER, tmp_path / "nothing")


def test_a_server_on_the_path_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find(SERVER, program(tmp_path, SERVER, "")).parent == tmp_path


def test_missing_build_tools_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(PeerError, match=r"cmake and a C\+\+ compiler.*--llama-server"):
        check_tools()


HEALTHY = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps(sys.argv[1:]).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def test_the_peer_has_a_slot_and_a_context_for_every_client_and_later_flags_take_precedence(tmp_path: Path) -> None:
    fake = program(tmp_path, SERVER, HEALTHY)
    with serve_peer(fake, Path("model.gguf"), Slots(8, 192, 2), ["--threads", "1"]) as server:
        flags = json.loads(urllib.request.urlopen(server.url).read())
    assert flags[flags.index("--parallel") + 1] == "8" and flags[flags.index("--ctx-size") + 1] == "1536"
    assert flags[flags.index("--model") + 1] == "model.gguf" and flags[-2:] == ["--threads", "1"]


def test_the_error_of_a_peer_that_does_not_start_includes_its_output(tmp_path: Path) -> None:
    fake = program(tmp_path, SERVER, "raise SystemExit('no such model')")
    with pytest.raises(PeerError, match="no such model"), serve_peer(fake, Path("m"), Slots(1, 9, 1)):
        raise AssertionError("entered without a server")


def test_the_peer_has_the_settings_that_were_fastest_in_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    rates = {"4 threads, separate caches": 10.0, "4 threads, shared caches": 30.0, "2 threads, shared caches": 20.0}
    runs: dict[str, int] = {}

    def run(program: Path, gguf: Path, slots: Slots, *rest: Any) -> list[float]:
        runs[slots.name] = runs.get(slots.name, 0) + rest[-1]
        return [rates.get(slots.name, 1.0)] * rest[-1]

    monkeypatch.setattr(peer_tuning, "_rates", run)
    tuned = peer_tuning.tune(Path("p"), Path("g"), 8, Shape(128, 64, (1, 9)), [], iter([1]))
    assert tuned.slots == Slots(8, 192, 4, unified=True) and len(tuned.tried) == 4
    assert runs["4 threads, shared caches"] == 4, "the fastest is tried again"
    assert runs["4 threads, separate caches"] == 1, "a slow setting is not"
    assert "--kv-unified" in tuned.report(["--x"])["flags"] and tuned.report(["--x"])["flags"][-1] == "--x"


def test_shared_beginnings_leave_the_peer_its_cache_of_prompts() -> None:
    shared, own = peer_tuning.untuned(8, Shape(1064, 64, (1, 9), 1000)), peer_tuning.untuned(8, Shape(64, 64, (1, 9)))
    assert "--no-cache-prompt" in own.slots.flags() and "--no-cache-prompt" not in shared.slots.flags()
    assert sampling_fields(PEER, 0, cached=True)["cache_prompt"] and not sampling_fields(PEER, 0)["cache_prompt"]
    assert shared.slots.tokens == 1128 and not shared.tried
    check_complete("arm", [Outcome(0, 1, tokens=64, cached_tokens=32)], 64, cached=True)


def test_missing_models_are_named_with_the_command_that_creates_them(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"benchmarks\.random_model --type Q4_0 .*qwen05b-Q4_0\.gguf"):
        select(["qwen05b"], tmp_path)
    assert [family.name for family in select(["storyteller"], tmp_path)] == ["storyteller"]


def test_a_comparison_can_be_limited_to_some_precisions() -> None:
    qwen = families()["qwen05b"]
    assert qwen.only(None) == qwen and [*qwen.only(["Q4_0"]).files] == ["Q4_0"]
    with pytest.raises(PeerError, match=r"qwen05b has Q8_0, Q4_0"):
        qwen.only(["Q4_0", "int5"])


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_a_random_model_is_loaded_and_every_token_has_text(tmp_path: Path, kind: str) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 1}
    config = CONFIG | sizes | {"vocab_size": 300, "max_position_embeddings": 256}
    path = write(tmp_path / "m.gguf", config, kind)
    found = files_at(path)
    assert found is not None and found.problems() == [] and found.facts()["quantisation"] == kind
    model = load_model(found, RuntimeOptions(kv_memory=2**22), lambda line: None).model
    try:
        assert (model.vocab_size, model.context_length) == (300, 256)
    finally:
        model.close()
    words = found.load_tokenizer()
    assert all(words.token_bytes(token) for token in range(300))


def rotate_halves(values: Any, angles: Any) -> Any:
    first, second = np.split(values, 2)
    return np.concatenate(
        [first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)]
    )


def rotate_pairs(values: Any, angles: Any) -> Any:
    first, second = values[0::2], values[1::2]
    rotated = np.empty_like(values)
    rotated[0::2] = first * np.cos(angles) - second * np.sin(angles)
    rotated[1::2] = second * np.cos(angles) + first * np.sin(angles)
    return rotated


@given(st.integers(1, 4), st.integers(0, 1000), st.integers(0, 1000))
@settings(max_examples=examples(30))
def test_reordered_rows_have_the_same_attention_with_the_other_rotation(heads: int, one: int, other: int) -> None:
    random = np.random.default_rng(heads)
    size, hidden = 8, 5
    query, key = random.normal(size=(2, heads * size, hidden)).astype(np.float32)
    state = random.normal(size=hidden)
    frequencies = 1.0 / 10.0 ** np.arange(size // 2)

    def scores(rotate: Any, query: Any, key: Any) -> list[float]:
        queries, keys = (query @ state).reshape(heads, size), (key @ state).reshape(heads, size)
        rotated = zip(queries, keys, strict=True)
        return [float(rotate(a, one * frequencies) @ rotate(b, other * frequencies)) for a, b in rotated]

    interleaved_scores = scores(rotate_pairs, interleaved(query, heads), interleaved(key, heads))
    assert interleaved_scores == pytest.approx(scores(rotate_halves, query, key), rel=1e-4, abs=1e-4)


class Recorder:
    """Records what would be written."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return lambda value: self.values.update({name: value})


def test_every_id_of_the_model_has_a_token_for_the_peer() -> None:
    config = {
        "model": {"vocab": {"<|end|>": 0, "a": 1, "b": 2, "ab": 3}, "merges": [["a", "b"]]},
        "added_tokens": [{"id": 0, "content": "<|end|>"}],
    }
    writer = Recorder()
    write_tokenizer(writer, {"model_type": "llama", "vocab_size": 5, "eos_token_id": 0}, config, "gpt-2")
    assert writer.values["add_token_list"] == ["<|end|>", "a", "b", "ab", "[unused 4]"]
    assert writer.values["add_token_types"] == [TOKEN_CONTROL, *[TOKEN_NORMAL] * 3, TOKEN_UNUSED]
    assert writer.values["add_token_merges"] == ["a b"] and writer.values["add_add_bos_token"] is False


def test_a_created_tokenizer_has_text_for_every_id_and_encodes_its_own_words() -> None:
    created = tokenizer(3000)
    assert created.get_vocab_size() == 3000
    assert all(created.decode([token]) for token in range(257, 3000))
    word = created.id_to_token(2999)
    assert len(word) == 4 and created.encode(word).ids == [2999]


def test_both_servers_get_the_same_sampling_parameters() -> None:
    onward, peer = sampling_fields(ONWARD, 40), sampling_fields(PEER, 40)
    assert {name: peer[name] for name in onward} == onward
    assert peer["samplers"] == ["top_k", "temperature", "top_p"]
    assert sampling_fields(PEER, 0)["samplers"] == ["temperature", "top_p"] and sampling_fields(ONWARD, 0)["top_k"] == 0


def one_round(ttft: float, gap: float) -> Round:
    return Round(0.0, None, [Outcome(0.0, 1.0, ttft=ttft, gaps=[gap, gap], tokens=int(10 / gap), chunks=3)])


def test_ratios_compare_arms_with_the_same_sampling_within_a_round() -> None:
    mine, peer, wide = f"{ONWARD} int8", f"{PEER} Q8_0", f"{ONWARD} int8, top_k off"
    rounds = [
        {mine: one_round(0.1, 0.5), peer: one_round(0.4, 1.0), wide: one_round(0.1, 0.5)},
        {mine: one_round(0.1, 1.0), peer: one_round(0.2, 5.0), wide: one_round(0.1, 0.5)},
    ]
    found = compare.compare(rounds)
    ratio = found["ratios"][mine][peer]
    assert (ratio["tok_s"]["least"], ratio["tok_s"]["greatest"]) == (2.0, 5.0)
    assert ratio["ttft_p50"]["median"] == pytest.approx(0.375) and ratio["itl_p95"]["least"] == pytest.approx(0.2)
    assert wide not in found["ratios"]


@pytest.mark.parametrize(
    "bad", [Outcome(0, 1, error="timeout"), Outcome(0, 1, tokens=63), Outcome(0, 1, tokens=64, cached_tokens=32)]
)
def test_a_request_that_did_less_work_aborts_the_run(bad: Outcome) -> None:
    with pytest.raises(RuntimeError, match="arm"):
        check_complete("arm", [Outcome(0, 1, tokens=64), bad], 64)


@pytest.mark.slow
def test_an_arm_runs_on_a_real_server_and_no_prompt_is_sent_twice() -> None:
    seeds = iter(range(1, 9))
    with serve("toy") as server, subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as asleep:
        arm = Arm(ONWARD, "toy", server, "toy", 40)
        idle = Server("http://127.0.0.1:1/v1", asleep.pid)
        comparison = Comparison(Shape(40, 5, (97, 123)), 2, [server, idle], seeds)
        rounds = [comparison.run(each, 3) for each in (arm, without_top_k(arm))]
        asleep.terminate()
    assert [outcome.tokens for each in rounds for outcome in each.outcomes] == [5] * 12
    assert next(seeds) == 3 and len(comparison.idle_cpu) == 2 and min(comparison.idle_cpu) >= 0


@pytest.mark.slow
def test_requests_with_a_shared_beginning_use_the_cache() -> None:
    with serve("toy") as server:
        comparison = Comparison(Shape(140, 5, (97, 123), 128), 1, [server], iter([1]))
        done = comparison.run(Arm(ONWARD, "toy", server, "toy", 40), 3)
    assert [outcome.cached_tokens for outcome in done.outcomes] == [0, 128, 128]


@pytest.mark.slow
def test_edits_are_reported_with_those_of_the_peer() -> None:
    found = {name: {"tok_s": rate, "decode_tok_s": 2 * rate, "tokens": 9} for name, rate in (("A", 30.0), (PEER, 10.0))}
    text = edit_pair.lines("renamed", found, {"A": "x", PEER: "y"})
    assert "30.0 tok/s (3.00×),   60.0 after the first token, 9 tokens, another text than llama-server's" in text
    with serve("toy") as server:
        arm = edit_pair.Arm(
            "A", server, "toy", lambda edit: {"prediction": {"type": "content", "content": edit.before}}
        )
        outcome, answered = edit_pair.ask(arm, Edit("renamed", "Rename it.", "a = 1", "b = 1"), 8)
    assert outcome.tokens == 8 and answered and edit_pair.rate(outcome) > 0


def test_one_file_is_a_family_of_both_servers(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", "llama")
    family = family_of(path)
    assert (family.name, family.vocabulary, family.files) == ("m", 30, {"file": path})
    (tmp_path / "m.gguf").write_bytes(b"no model")
    with pytest.raises(PeerError, match="not a GGUF file"):
        family_of(path)
