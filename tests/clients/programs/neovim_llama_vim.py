"""llama.vim in Neovim: it requests /infill while one types, and shows the text at the cursor."""

from neovim import TEXT, neovim
from report import KEY, URLS, check, metric, recipe, until

SECTION = "Vim and Neovim: llama.vim"


def settings(url: str, more: str = "") -> str:
    return f"vim.cmd [[\n{recipe(SECTION, url)}{more}]]"


@check("a completion is shown as one types, and Tab accepts it")
def shown():
    with neovim(settings(URLS["editors"])) as editor:
        editor.type("2GA one")
        until(editor.ghost)
        ghost = editor.ghost()
        editor.type("<Tab>")
        until(lambda: editor.text == TEXT.replace("two\nz", f"two one{ghost}\nz"), lambda: (ghost, editor.text))
    until(lambda: metric("onward_engine_running", URLS["editors"]) == 0)


@check("a server with keys")
def keyed():
    with neovim(settings(URLS["keyed"], f"let g:llama_config['api_key'] = '{KEY}'\n")) as editor:
        editor.type("2GA one")
        until(editor.ghost)
