"""The `Settings`, declared once for flags, environment variables, onward.toml and the reference page."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from onward import values
from onward.folders import cache_folder
from onward.settings.option import Option, as_option, option
from onward.values import ContentFilterSetting, Precision, RuntimeName, WeightForm

DIALECTS = ("llama-server", "ollama", "mistral", "tabby", "tgi")
"""The APIs of other servers that can be served: each is a module of `onward.api`."""
PREFIX_CACHE_SAVE_SECONDS = 10.0
"""How long an engine that is stopped may write to `prefix_cache_dir`."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that an operator can configure. Sizes are in bytes, durations in seconds."""

    model: tuple[str, ...] = option(
        ("storyteller",), "Model", values.string,
        "Model to serve: a built-in name, a folder, or a Hugging Face id; or, for one that a llama-server, vLLM or "
        "SGLang computes, NAME=llama+http://HOST:PORT, NAME=vllm+http:… or NAME=sglang+http:…, "
        "once for each of its addresses. Repeatable; the first is the default model.",
        metavar="NAME_OR_PATH", is_repeatable=True,
    )  # fmt: skip
    alias: tuple[tuple[str, str], ...] = option(
        (), "Model", values.alias, "Additional name for a model. Repeatable.",
        metavar="NAME=MODEL", is_repeatable=True,
    )  # fmt: skip
    lora: tuple[tuple[str, str], ...] = option(
        (), "Model", values.lora,
        "A LoRA adapter (a folder of PEFT, or a GGUF file) of a GGUF or safetensors model, which is served with it "
        "as a model NAME. BASE: the model, as in --model; the first one without. Repeatable.",
        metavar="NAME=PATH[@BASE]", is_repeatable=True,
    )  # fmt: skip
    draft: tuple[tuple[str, str], ...] = option(
        (), "Model", values.draft,
        "A small model with the same tokenizer that drafts tokens for a model, the first one without MODEL=, while a "
        "single request runs; mtp: the model's own layers that predict several tokens. It never changes a token. "
        "Repeatable.",
        metavar="[MODEL=]NAME_OR_PATH", is_repeatable=True,
    )  # fmt: skip
    tokenizer: tuple[tuple[str, str], ...] = option(
        (), "Model", values.tokenizer,
        "Where the tokenizer of a model NAME that another server computes comes from: a model, as in --model, or "
        "a folder with tokenizer.json. Not needed where that server's model is on this machine. Repeatable.",
        metavar="NAME=MODEL", is_repeatable=True,
    )  # fmt: skip
    engine: tuple[tuple[str, str], ...] = option(
        (), "Model", values.engine,
        "What computes the models, or the one named: onward; llama.cpp, vllm or sglang, a program that is started, "
        "watched, and ended with the server; auto: the best of them for the model that is on this machine. "
        "Default: onward. Repeatable.",
        metavar="[MODEL=]ENGINE", is_repeatable=True, is_server_only=True,
    )  # fmt: skip
    engine_path: tuple[tuple[str, Path], ...] = option(
        (), "Model", values.engine_path,
        "The program of an engine, where it is not on PATH: llama.cpp=…/llama-server, vllm=…/vllm, or for sglang the "
        "Python that has it. Repeatable.",
        metavar="PROGRAM=PATH", is_repeatable=True, is_server_only=True,
    )  # fmt: skip
    engine_arg: tuple[tuple[str, str], ...] = option(
        (), "Model", values.engine_argument,
        "An argument that is passed on to the program of an engine, such as vllm=--dtype=float16. Repeatable.",
        metavar="[PROGRAM=]ARGUMENT", is_repeatable=True, is_server_only=True,
    )  # fmt: skip
    cluster: str | None = option(
        None, "Model", values.string,
        "Serve the models of a Ray cluster, HOST:PORT, or auto for the one of this machine, which must be one of its "
        "nodes; see `onward cluster`. Takes the place of --model.",
        metavar="ADDRESS", is_server_only=True,
    )  # fmt: skip
    model_folder: tuple[Path, ...] = option(
        (), "Model", values.path,
        "Folder whose models and LoRA adapters an admin key may add while the server runs, with POST /v1/admin/models "
        "and /v1/load_lora_adapter. Repeatable.",
        metavar="PATH", is_repeatable=True, is_server_only=True,
    )  # fmt: skip
    openai_names: bool = option(
        True, "Model", values.boolean,
        "The first model also answers to gpt-3.5-turbo-instruct, davinci-002 and babbage-002, the names of OpenAI's "
        "completions models, unless a model or alias has that name.",
    )  # fmt: skip
    context_length: int = option(
        0, "Model", values.integer(0),
        "Maximum number of tokens in prompt and completion together; 0: the model's own limit.",
        metavar="TOKENS",
    )  # fmt: skip
    cache_dir: Path = option(  # noqa: RUF009
        cache_folder(), "Model", values.path, "Folder for downloaded and compiled models.", metavar="PATH"
    )
    offline: bool = option(
        False, "Model", values.boolean,
        "Never download: only built-in models, paths, and what was downloaded before.",
    )  # fmt: skip
    host: str = option(
        "127.0.0.1", "Network", values.string,
        "Address to listen on. Any address but a loopback address requires an API key or --no-auth.", metavar="HOST",
    )  # fmt: skip
    port: int = option(
        8000, "Network", values.integer(0, 65535), "Port to listen on; 0: any free port.", metavar="PORT"
    )
    take_over: bool = option(
        False, "Network", values.boolean,
        "Take the port over from the server of this user that listens there, if there is one, when the models are "
        "loaded: no request fails, and that server ends when it has finished what it began.",
    )  # fmt: skip
    keep_alive: float = option(
        15.0, "Network", values.seconds,
        "Interval of the comment lines that keep a silent stream from timing out in proxies and clients; 0: none.",
        metavar="SECONDS",
    )  # fmt: skip
    drain: float = option(
        30.0, "Network", values.seconds,
        "How long running requests may continue after Ctrl-C, SIGTERM, or the end of its terminal.",
        metavar="SECONDS",
    )  # fmt: skip
    api_key: tuple[str, ...] = option(
        (), "Security", values.api_key,
        "API key that clients must send. Repeatable. Other users of the machine can see flags: prefer --api-key-file.",
        metavar="KEY", is_repeatable=True, is_secret=True,
    )  # fmt: skip
    api_key_file: Path | None = option(  # noqa: RUF009
        None, "Security", values.path,
        "File of API keys, one per line: `KEY`, `NAME = KEY` or `NAME = sha256:DIGEST`; lines that begin with # are "
        "comments. Read again when it changes.",
        metavar="PATH",
    )  # fmt: skip
    upstream_key: str | None = option(
        None, "Security", values.api_key,
        "API key for servers that compute models, the same for all of them. Other users of the machine can see "
        "flags: prefer the environment.",
        metavar="KEY", is_secret=True,
    )  # fmt: skip
    allowed_host: tuple[str, ...] = option(
        (), "Security", values.host_name,
        "Name in URLs of this server, besides localhost and loopback addresses. Repeatable. A server without keys on "
        "a loopback address, and any server with this flag, refuses requests for other hosts.",
        metavar="NAME", is_repeatable=True,
    )  # fmt: skip
    allowed_origin: tuple[str, ...] = option(
        (), "Security", values.origin,
        "Web pages, such as https://example.com, that may use a server without keys on a loopback address; those from "
        "localhost always may. null: pages opened as files; *: every page. Repeatable.",
        metavar="ORIGIN", is_repeatable=True,
    )  # fmt: skip
    trusted_proxy: tuple[str, ...] = option(
        (), "Security", values.network,
        "Address or network of a reverse proxy whose X-Forwarded-For header names the client. Repeatable. From all "
        "others the header is ignored.",
        metavar="ADDRESS", is_repeatable=True,
    )  # fmt: skip
    no_auth: bool = option(False, "Security", values.boolean, "Accept requests without an API key on any address.")
    profile: Literal["strict", "default", "lenient"] = option(
        "default", "Limits", values.choice("strict", "default", "lenient"),
        "strict: exactly OpenAI's fields and limits. default: also the extensions that real clients send. "
        "lenient: unknown fields are ignored, up to 64 stop strings are accepted, the model may be omitted, and "
        "a server with one model accepts every model name.",
        is_server_only=True,
    )  # fmt: skip
    dialects: tuple[str, ...] = option(
        ("all",), "Network", values.choice("all", "none", *DIALECTS),
        "Completion APIs of other servers that are served in addition to OpenAI's, for editors and programs that know "
        "only those. all, none, or names. Repeatable.",
        metavar="NAME", is_repeatable=True,
    )  # fmt: skip
    max_body: int = option(
        16_000_000,
        "Limits",
        values.size,
        "Maximum size of a request body; larger bodies are rejected with 413.",
        metavar="SIZE",
        is_server_only=True,
    )
    max_waiting: int = option(
        1024, "Limits", values.integer(0),
        "Maximum number of sequences of one client that wait, by default 16 full batches; further requests of that "
        "client are rejected with 503 and Retry-After. A client is a key, or without keys an address.",
        metavar="SEQUENCES",
    )  # fmt: skip
    max_waiting_memory: int = option(
        256_000_000, "Limits", values.size,
        "Maximum memory of all waiting requests of a model; no client may use more than it leaves to the others.",
        metavar="SIZE",
    )  # fmt: skip
    max_wait: float = option(
        600.0, "Limits", values.seconds,
        "How long a request may wait before it is started; then it is rejected with 503 and Retry-After; 0: any time.",
        metavar="SECONDS",
    )  # fmt: skip
    max_parallel: int = option(
        2048, "Limits", values.integer(1),
        "Maximum number of choices (prompts x candidates) of one request; 8 times as many when `max_tokens` is 0.",
        metavar="CHOICES",
    )  # fmt: skip
    max_prompt_tokens: int = option(
        524_288, "Limits", values.integer(1), "Maximum number of prompt tokens of one request, all prompts together.",
        metavar="TOKENS",
    )  # fmt: skip
    max_answer_logprobs: int = option(
        1_048_576, "Limits", values.integer(1),
        "Maximum number of log probabilities of one request: tokens of all choices, and of echoed prompts, times one "
        "plus `logprobs`; tokens of the prompts of all choices times one plus `prompt_logprobs`.", metavar="NUMBER",
    )  # fmt: skip
    resume_window: float = option(
        120.0, "Limits", values.seconds,
        "How long a stream with `resumable` is kept, and worked on, after its connection is lost; 0: none is.",
        metavar="SECONDS", is_server_only=True,
    )  # fmt: skip
    resume_memory: int = option(
        128_000_000, "Limits", values.size,
        "Memory for streams with `resumable`; when it is used up, those that have ended are forgotten first, of the "
        "client that holds most.",
        metavar="SIZE", is_server_only=True,
    )  # fmt: skip
    max_text: int = option(
        4_000_000, "Limits", values.size,
        "Maximum size of the text of a /tokenize request, as UTF-8. The text of a prompt is limited by the model's "
        "context.", metavar="SIZE", is_server_only=True,
    )  # fmt: skip
    content_filter: tuple[ContentFilterSetting, ...] = option(
        (), "Limits", values.content_filter,
        "Text that must not leave the server, as a JSON object. Repeatable; in the settings file, [[content_filter]].",
        metavar="JSON", is_repeatable=True,
    )  # fmt: skip
    database: str | None = option(
        None, "Team", values.database_url,
        "Database of keys with limits and of what they used: sqlite:///PATH, or postgresql://USER:PASSWORD@HOST/NAME "
        "for several servers of one service. Other users of the machine can see flags: prefer the environment for a "
        "URL with a password.", metavar="URL", is_secret=True,
    )  # fmt: skip
    data_dir: Path | None = option(  # noqa: RUF009
        None,
        "Team",
        values.path,
        "Folder of this server's data. Without --database, the database is onward.db in it.",
        metavar="PATH",
    )
    keep_ledger: int | None = option(
        None, "Team", values.period,
        "How long requests stay in the ledger, such as 90d; by default forever. Older usage is forgotten.",
        metavar="PERIOD",
    )  # fmt: skip
    log_requests: str | None = option(
        None, "Team", values.request_log,
        "Keep prompts, parameters and completions of all requests: in files of a folder, or in the database. Inform "
        "the people whose data this is.", metavar="FOLDER|database",
    )  # fmt: skip
    keep_requests: int | None = option(
        None, "Team", values.period, "How long --log-requests keeps them; by default 30d.", metavar="PERIOD",
    )  # fmt: skip
    price: tuple[tuple[str, int, int, int], ...] = option(
        (), "Team", values.price,
        "Price of a model's tokens: amounts per million tokens of prompts, of completions, and of the part of "
        "prompts that was in the cache, which otherwise costs as much as the rest. Repeatable.",
        metavar="MODEL=PROMPT/COMPLETION[/CACHED]", is_repeatable=True,
    )  # fmt: skip
    max_rows: int = option(
        64,
        "Performance",
        values.integer(1),
        "Maximum number of sequences computed together in one step.",
        metavar="SEQUENCES",
    )
    kv_memory: int | None = option(
        None, "Performance", values.size_or_auto,
        "Memory for the KV cache; auto: a fraction of the free memory.", metavar="SIZE|auto",
    )  # fmt: skip
    threads: int = option(
        0, "Performance", values.integer(0), "Threads that run the model; 0: one per core.", metavar="N"
    )
    runtime: RuntimeName = option(  # noqa: RUF009
        "auto", "Performance", values.choice(*get_args(RuntimeName)),
        "What computes a model; another one is refused. native: kernels of Onward's own, for GGUF and safetensors "
        "files, with the same bits on every machine. openvino: for OpenVINO IR folders, by the extra "
        "`onward[openvino]`. auto: what the model's format needs.",
    )  # fmt: skip
    precision: Precision = option(  # noqa: RUF009
        "fast", "Performance", values.choice(*get_args(Precision)),
        "fast: the arithmetic that is fastest on this processor. exact: 32-bit floating point.",
    )  # fmt: skip
    weights: WeightForm = option(  # noqa: RUF009
        "auto", "Performance", values.choice(*get_args(WeightForm)),
        "How the weights of GGUF and safetensors files are held. auto: quantised ones as in the file, others as "
        "8-bit integers; with --precision exact unchanged. exact: as in the file, slower for some types. int8, int4: "
        "what is floating point in the file (FP8 too) in 8 or 4 bits; 4 have a loss that is noticeable on small "
        "models.",
    )  # fmt: skip
    prefix_cache: bool = option(
        True,
        "Performance",
        values.boolean,
        "Reuse the KV cache of earlier prompts for requests that begin with the same tokens.",
    )
    prefix_cache_dir: Path | None = option(  # noqa: RUF009
        None, "Performance", values.path,
        "Folder that keeps the prefix cache across restarts, and blocks that memory has no room for. Prompts can be "
        "read from its files, which belong to the user alone. Several servers may share it.",
        metavar="PATH",
    )  # fmt: skip
    prefix_cache_disk: int = option(
        10_000_000_000, "Performance", values.size,
        "Maximum size of all files in --prefix-cache-dir together; those that were used longest ago are removed.",
        metavar="SIZE",
    )  # fmt: skip
    engine_process: Literal["on", "off"] = option(
        "on", "Performance", values.choice("on", "off"),
        "on: each model's engine runs in a process of its own. If that dies, another one is started, and all streams "
        "continue where they were. off: in a thread of the server.", is_server_only=True,
    )  # fmt: skip
    engine_timeout: float = option(
        120.0, "Performance", values.seconds,
        "Silence after which an engine process that has requests counts as hanging, and is replaced. Must be longer "
        "than a step with a long prompt takes, or than all of the longest prompt where another server computes a "
        "model. 0: never.",
        metavar="SECONDS", is_server_only=True,
    )  # fmt: skip
    engine_wait: float = option(
        300.0, "Performance", values.seconds,
        "How long requests wait while another server that computes a model, or every replica of a cluster, is away; "
        "then they are rejected with 503, and so are later ones, until it is back. For an engine that Onward starts "
        "they wait as long as it loads.",
        metavar="SECONDS", is_server_only=True,
    )  # fmt: skip
    speculation: Literal["auto", "off"] = option(
        "auto", "Performance", values.choice("auto", "off"),
        "auto: draft tokens from a request's prediction and from repeated text, and verify several per step. "
        "It never changes a token: off is for benchmarks.",
    )  # fmt: skip
    log_level: Literal["debug", "info", "warning", "error"] = option(
        "info", "Logging", values.choice("debug", "info", "warning", "error"), "Minimum severity of log messages.",
        is_server_only=True,
    )  # fmt: skip
    log_format: Literal["text", "json"] = option(
        "text", "Logging", values.choice("text", "json"), "text: for people. json: one JSON object per line.",
        is_server_only=True,
    )  # fmt: skip
    otlp_endpoint: str | None = option(
        None, "Logging", values.http_url,
        "Send traces to an OpenTelemetry collector, by OTLP over HTTP, such as http://127.0.0.1:4318; needs the extra "
        "onward[otel]. Its headers and certificates are in OpenTelemetry's own variables, OTEL_EXPORTER_OTLP_….",
        metavar="URL", is_server_only=True,
    )  # fmt: skip
    trace_ratio: float = option(
        1.0, "Logging", values.ratio,
        "Fraction of requests that are traced, of those that come without a trace context.", metavar="0…1",
        is_server_only=True,
    )  # fmt: skip
    trace_prompts: bool = option(
        False, "Logging", values.boolean, "Put prompts and completions into traces.", is_server_only=True,
    )  # fmt: skip
    access_log: bool = option(True, "Logging", values.boolean, "Log one line per request.", is_server_only=True)

    @property
    def save_seconds(self) -> float:
        """How long an engine that is stopped may write its prefix cache."""
        return 0.0 if self.prefix_cache_dir is None else PREFIX_CACHE_SAVE_SECONDS

    def __repr__(self) -> str:
        """Secrets are counted, not shown."""
        shown = (f"{option.name}={_masked(option, getattr(self, option.name))!r}" for option in options())
        return f"Settings({', '.join(shown)})"


def _masked(option: Option, value: Any) -> Any:
    return f"<{len(value)} hidden>" if option.is_secret and value else value


@cache
def options() -> tuple[Option, ...]:
    """Return every setting, in order of declaration."""
    return tuple(as_option(declared) for declared in fields(Settings))
