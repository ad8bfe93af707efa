"""Every setting either acts or is refused, whatever computes the models."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onward.compose import compose
from onward.compose.backend import start_engine
from onward.compose.unused import refuse_unused, unused_settings
from onward.engines.cluster.config import parse_config
from onward.errors import SetupError
from onward.settings import Settings, options

SERVER = "there=vllm+http://127.0.0.1:1"
WAYS: dict[str, dict[str, Any]] = {
    "onward": {},
    "a thread": {"engine_process": "off"},
    "llama.cpp": {"engine": (("", "llama.cpp"),)},
    "vllm": {"engine": (("", "vllm"),)},
    "sglang": {"engine": (("", "sglang"),)},
    "a server": {"model": (SERVER,)},
}
"""What computes all models."""
OTHERS = frozenset({"llama.cpp", "vllm", "sglang", "a server"})
NOT_HERE: dict[str, AbstractSet[str]] = {
    **dict.fromkeys(("precision", "weights", "runtime", "kv_memory", "speculation", "engine_process"), OTHERS),
    **dict.fromkeys(("prefix_cache", "prefix_cache_dir", "prefix_cache_disk"), OTHERS),
    "threads": OTHERS - {"llama.cpp"},
    "engine_timeout": {"a thread"},
    "engine_wait": WAYS.keys() - {"a server"},
}
"""Where a setting has no effect: nothing reads it there. All that have one are in one of these two tables."""
ANYWHERE = """
    model alias lora draft tokenizer engine engine_path engine_arg cluster model_folder openai_names context_length
    cache_dir offline host port take_over keep_alive drain api_key api_key_file upstream_key allowed_host allowed_origin
    trusted_proxy no_auth profile dialects max_body max_waiting max_waiting_memory max_wait max_parallel
    max_prompt_tokens max_answer_logprobs resume_window resume_memory max_text content_filter database data_dir
    keep_ledger log_requests keep_requests price max_rows log_level log_format otlp_endpoint trace_ratio trace_prompts
    access_log
"""
"""Settings of what is above the engines, and those that say what computes."""
STATED: dict[str, Any] = {
    "precision": "exact", "weights": "int8", "runtime": "native", "kv_memory": 1, "prefix_cache": False,
    "prefix_cache_dir": Path("/somewhere"), "prefix_cache_disk": 1, "speculation": "off", "engine_process": "off",
    "threads": 2, "engine_timeout": 9.0, "engine_wait": 9.0,
}  # fmt: skip


def settings(**changes: Any) -> Settings:
    return Settings(**{"model": ("a", "b"), **changes})


def test_each_setting_is_in_one_of_the_tables() -> None:
    assert {option.name for option in options()} == NOT_HERE.keys() | {*ANYWHERE.split()}
    assert NOT_HERE.keys().isdisjoint(ANYWHERE.split())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NOT_HERE)
def test_a_setting_is_refused_where_it_has_no_effect_and_accepted_elsewhere(name: str, way: str) -> None:
    stated = {name: STATED[name]} | ({"prefix_cache_dir": Path("/x")} if name == "prefix_cache_disk" else {})
    asked = settings(**{**stated, **WAYS[way]})
    assert (name in unused_settings(asked, is_server=True)) is (way in NOT_HERE[name])
    assert unused_settings(settings(**WAYS[way]), is_server=True) == {}


@pytest.mark.parametrize(
    ("changes", "is_used"),
    [
        ({"engine": (("a", "vllm"),)}, True),
        ({"engine": (("", "auto"),)}, True),
        ({"engine": (("a", "vllm"), ("b", "vllm"))}, False),
        ({"engine": (("a", "vllm"), ("b", "vllm")), "model_folder": (Path(),)}, True),
        ({"engine": (("", "vllm"),), "model_folder": (Path(),)}, False),
        ({"model": (SERVER, "a")}, True),
        ({"cluster": "auto"}, True),
    ],
    ids=["one of two here", "perhaps here", "none here", "later ones here", "later ones there", "both", "replicas'"],
)
def test_it_is_enough_that_one_of_the_models_may_need_a_setting(changes: dict[str, Any], is_used: bool) -> None:
    found = unused_settings(settings(**{"precision": "exact", **changes}), is_server=True)
    assert list(found) == ([] if is_used else ["precision"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"engine": (("", "vllm"),), "precision": "exact"},
            "--precision is for models that Onward itself computes, and another program computes all of these: leave "
            "it out; --engine-arg passes a flag of that program's own.",
        ),
        (
            {"model": (SERVER,), "prefix_cache": False},
            "--no-prefix-cache is for models that Onward itself computes, and another program computes all of these: "
            "leave it out; that program has its own flags.",
        ),
        (
            {"prefix_cache_disk": 1},
            "--prefix-cache-disk limits the files in --prefix-cache-dir: pass that too, or leave it out.",
        ),
        ({"engine_timeout": 1.0, "engine_process": "off"}, "--engine-timeout is how long an engine's process may be"),
        ({"engine_wait": 1.0}, "--engine-wait is for models that servers at addresses of their own compute, and for"),
        ({"resume_memory": 1, "resume_window": 0.0}, "--resume-memory is for streams that are kept for a while, and"),
        (
            {"engine_path": (("vllm", Path("/vllm")),)},
            "--engine-path vllm=… is for models that vllm computes, and there is none: pass --engine vllm, or leave it "
            "out.",
        ),
        ({"engine_arg": (("", "--flag"), ("vllm", "--x")), "engine": (("", "vllm"),)}, ""),
        ({"engine_arg": (("", "--flag"),)}, "--engine-arg … is for models that a program computes, and there is none:"),
        (
            {"engine_arg": (("", "--flag"), ("sglang", "--x")), "engine": (("", "vllm"),)},
            "--engine-arg sglang=… is for models that sglang computes, and there is none: pass --engine sglang, or",
        ),
        ({"engine_arg": (("sglang", "--x"),), "engine": (("b", "auto"),)}, ""),
    ],
)
def test_what_has_no_effect_is_refused_in_a_sentence(changes: dict[str, Any], message: str) -> None:
    asked = settings(**changes)
    if not message:
        refuse_unused(asked, is_server=True)
        return
    with pytest.raises(SetupError) as raised:
        refuse_unused(asked, is_server=True)
    assert str(raised.value).startswith(message)


def test_commands_are_not_concerned_by_settings_of_a_server() -> None:
    """They may be in the environment, or in the settings file of the user."""
    asked = settings(engine_wait=1.0, engine_arg=(("vllm", "--x"),), resume_memory=1, resume_window=0.0)
    refuse_unused(asked, is_server=False)
    with pytest.raises(SetupError, match="--engine-wait is for"):
        compose(asked, own_process=True)


def test_a_replica_whose_program_has_no_such_setting_is_refused() -> None:
    [config] = parse_config({"model": [{"model": "toy", "engine": "vllm", "weights": "int4"}]}, "cluster.toml")
    with ExitStack() as on_failure, pytest.raises(SetupError, match="--weights is for models that Onward itself"):
        start_engine(config.settings(), print, on_failure, threads=config.threads)
    with ExitStack() as on_failure, pytest.raises(SetupError, match="vLLM reads safetensors models; toy is one of"):
        start_engine(replace(config.settings(), weights="auto"), print, on_failure, threads=config.threads)
    with ExitStack() as on_failure, pytest.raises(SetupError, match="--threads is for models that Onward itself"):
        start_engine(replace(config.settings(), weights="auto", threads=2), print, on_failure)
