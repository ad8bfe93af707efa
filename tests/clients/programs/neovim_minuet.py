"""minuet-ai.nvim in Neovim: it requests /v1/completions with a suffix while one types, and shows the text at the
cursor."""

import json
import urllib.request

from neovim import TEXT, neovim
from report import KEY, URLS, check, metric, recipe, until

SECTION = "Neovim: minuet-ai.nvim"
REQUEST = """
local utils, config = require('minuet.utils'), require('minuet').config
local options, context = config.provider_options.openai_fim_compatible, utils.get_context(utils.make_cmp_context())
local function of(part) return options.template[part](context.lines_before, context.lines_after, context.opts) end
return { model = options.model, prompt = of 'prompt', suffix = of 'suffix' }
"""
ENDLESS = """
local config = require('minuet').config
config.request_timeout = 0
config.provider_options.openai_fim_compatible.optional = { max_tokens = 1500, n = 64, ignore_eos = true }
"""


def completion(fields: dict[str, object]) -> str:
    body = json.dumps({**fields, "temperature": 0, "max_tokens": 64}).encode()
    asked = urllib.request.Request(URLS["editors"] + "/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(asked) as answer:
        return json.load(answer)["choices"][0]["text"]


@check("the server's completion is shown as one types, and Tab accepts it")
def shown():
    with neovim(recipe(SECTION, URLS["editors"])) as editor:
        editor.type("2GA one")
        until(editor.ghost)
        fields, ghost = editor.api.exec_lua(REQUEST), editor.ghost()
        assert TEXT.splitlines()[0] in fields["prompt"] and fields["suffix"].startswith("\nz"), fields
        assert ghost == completion(fields), (ghost, fields)
        editor.type("<Tab>")
        until(lambda: editor.text == TEXT.replace("two\nz", f"two one{ghost}\nz"), lambda: (ghost, editor.text))


@check("typing on cancels the request on the server, and so does leaving the editor")
def cancelled():
    url = URLS["editors"]
    before = metric("onward_requests_cancelled_total", url)
    with neovim(recipe(SECTION, url) + ENDLESS) as editor:
        editor.type("2GA a")
        until(lambda: metric("onward_engine_running", url) > 0, editor.messages)
        editor.type("b")
        until(lambda: metric("onward_requests_cancelled_total", url) == before + 1, editor.messages)
        until(lambda: metric("onward_engine_running", url) > 0, editor.messages)
    until(lambda: metric("onward_requests_cancelled_total", url) == before + 2)
    until(lambda: metric("onward_engine_running", url) == 0 == metric("onward_kv_blocks_used", url))


@check("a server with keys")
def keyed():
    settings = recipe(SECTION, URLS["keyed"])
    with neovim(settings.replace("'any'", f"'{KEY}'")) as editor:
        editor.type("2GA one")
        until(editor.ghost)
    with neovim(settings) as editor:
        editor.type("2GA one")
        until(lambda: "API key" in editor.messages())
        assert not editor.ghost()
