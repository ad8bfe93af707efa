"""llama.cpp's own API (tools/server, 0c1e57098): the endpoints that llama.vim, llama.vscode and others call."""
