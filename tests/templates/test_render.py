"""Chat templates are untrusted programs: each renders a prompt or fails with one sentence, and none has access to
anything else."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import httpx2
import pytest

from onward.offload import owner
from onward.templates import render as rendering
from onward.templates.render import Message, Render, TemplateError, render
from tests.checkpoints.making import write_gguf
from tests.checkpoints.tiny import tiny
from tests.engines.upstreams.byte_model import llama_server

TURNS = [
    Message("system", "Be <brief>."),
    Message("user", "Hé 🦊?"),
    Message("assistant", "No."),
    Message("user", "So?"),
]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_2 = """
{%- if messages[0]['role'] == 'system' -%}
  {%- set system = messages[0]['content'] -%}{%- set turns = messages[1:] -%}
{%- else -%}
  {%- set system = false -%}{%- set turns = messages -%}
{%- endif -%}
{%- for turn in turns -%}
  {%- if (turn['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('Must alternate') }}{%- endif -%}
  {%- if loop.first and system -%}
    {%- set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + turn['content'] -%}
  {%- else -%}{%- set content = turn['content'] -%}{%- endif -%}
  {%- if turn['role'] == 'user' -%}{{ '[INST] ' + content.strip() + ' [/INST]' }}
  {%- else -%}{{ ' ' + content.strip() + ' ' + eos_token }}{%- endif -%}
{%- endfor -%}
"""
ODD = """
{%- set ns = namespace(count=0, first=none) -%}
{%- for message in messages if message.content -%}
  {%- set ns.count = ns.count + 1 -%}
  {{- '\\n' if not loop.first }}{{ loop.index }}/{{ message.role | upper }}: {{ message.content | trim | tojson }}
{%- endfor %}
{%- macro shout(text) -%}{{ text | replace('.', '!') }}{%- endmacro %}
{{ shout('End.') }} {{ ns.count }} {{ messages | map(attribute='role') | list | join(',') }}
    {% if true %}
indented
    {% endif %}
"""
USUAL = {"ChatML": CHATML, "Llama 2": LLAMA_2, "filters, macros and namespaces": ODD}


def made(template: str, eos_token: str = "</s>") -> Render:
    return Render(template, TURNS, "<s>", eos_token, add_generation_prompt=True)


def prompt_of(request: Render) -> str:
    return asyncio.run(rendered(request))


async def rendered(request: Render, client: str = "") -> str:
    owner.set(client)
    return await render(request)


def test_a_template_makes_a_prompt() -> None:
    assert prompt_of(made(CHATML)) == (
        "<|im_start|>system\nBe <brief>.<|im_end|>\n<|im_start|>user\nHé 🦊?<|im_end|>\n"
        "<|im_start|>assistant\nNo.<|im_end|>\n<|im_start|>user\nSo?<|im_end|>\n<|im_start|>assistant\n"
    )


WORKS = {
    "{{ messages[0] | tojson }}": '{"role": "system", "content": "Be <brief>."}',
    "{{ messages[1].content | tojson(indent=1) }}": '"Hé 🦊?"',
    "a{% generation %}b{% endgeneration %}c": "abc",
    "{% for each in range(9) %}{{ each }}{% if each == 2 %}{% break %}{% endif %}{% endfor %}": "012",
    "{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ documents is none }}": "<s></s>TrueTrue",
    "{{ unknown }}{{ strftime_now('%%') }}": "%",
    "{{ '\\ud800' }}": "?",
    "{{ raise_exception.__globals__ }}{{ '{0.__class__}'.format(1) }}": "",
    "  {% if true %}\nx\n  {% endif %}\ny": "x\ny",
}


@pytest.mark.slow
@pytest.mark.parametrize("template", WORKS)
def test_what_transformers_offers_templates_is_available(template: str) -> None:
    assert prompt_of(made(template)) == WORKS[template]


HOSTILE = {
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}": "takes too long",
    "{{ 'x' * 10 ** 10 }}": "needs more memory",
    "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}": "needs more memory",
    "{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}": "its prompt is longer than",
    "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}": "needs more memory, or nesting",
    "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}": "needs more memory, or nesting",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}": "does what no template may",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}": "does what no template may",
    "{{ messages.append(1) }}": "does what no template may",
    "{% include '/etc/passwd' %}": "fails: no loader",
    "{{ nothing.at.all }}": "fails: 'nothing' is undefined",
    "one\n{% for %}": "has an error on line 2",
    "{{ raise_exception('no <b>system</b>\n here') }}": "refuses the conversation: no <b>system</b> here",
}


@pytest.mark.slow
@pytest.mark.parametrize("template", HOSTILE)
def test_a_hostile_template_is_reported_in_one_sentence(template: str) -> None:
    with pytest.raises(TemplateError) as raised:
        prompt_of(made(template))
    assert HOSTILE[template] in str(raised.value)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 500


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limits")
def test_a_template_that_leaves_the_sandbox_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of the process, seen by code that runs where a template does."""
    monkeypatch.setenv("ONWARD_API_KEY", "secret")
    program = """
import os, socket
from onward.templates import worker
def escaped(request):
    found = []
    for attempt in (lambda: open("/etc/passwd"), lambda: open("/tmp/new", "w"), socket.socket, os.pipe,
                    lambda: os.environ["ONWARD_API_KEY"], lambda: bytearray(1 << 30)):
        try:
            attempt()
            found.append("possible")
        except (OSError, KeyError, MemoryError) as error:
            found.append(type(error).__name__)
    return worker.Rendered(" ".join(found))
worker.rendered, rendered = escaped, worker.rendered
worker._load_everything = lambda: None
worker.main()
"""
    monkeypatch.setattr(rendering, "WORKER", (sys.executable, "-c", program))
    assert prompt_of(made("")) == "OSError OSError OSError OSError KeyError MemoryError"


def test_an_answer_that_is_none_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that has left the sandbox may write anything."""
    program = """
from onward.ipc.frames import write_frame
from onward.ipc.worker_end import take_connection
write_frame(take_connection()[1], b"nothing")
"""
    monkeypatch.setattr(rendering, "WORKER", (sys.executable, "-c", program))
    with pytest.raises(TemplateError, match="needs more memory"):
        prompt_of(made(""))


@pytest.mark.slow
def test_a_client_has_one_process_and_others_do_not_wait_for_it() -> None:
    endless = made(next(iter(HOSTILE)))

    async def test() -> None:
        held = [asyncio.create_task(rendered(endless, "a")) for _ in range(2)]
        assert await rendered(made("fine"), "b") == "fine"
        assert not held[1].done()
        held[1].cancel()
        with pytest.raises(TemplateError, match="takes too long"):
            await held[0]

    asyncio.run(test())


@pytest.mark.slow
@pytest.mark.parametrize("name", USUAL)
def test_a_prompt_is_that_of_llama_server(name: str, tmp_path: Path) -> None:
    """From the same file, with its own implementation of Jinja."""
    metadata, tensors = tiny("llama")
    metadata["tokenizer.chat_template"] = USUAL[name]
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    body = {"messages": [{"role": each.role, "content": each.content} for each in TURNS]}
    with llama_server(path, "-c", "64", "--no-warmup", "--jinja") as url:
        answer = httpx2.post(f"{url}/apply-template", json=body, timeout=60)
        info = httpx2.get(f"{url}/props", timeout=60).json()
    theirs = answer.json()["prompt"]
    assert rendering._render(made(USUAL[name], eos_token=info["eos_token"])) == theirs, json.dumps(theirs)
