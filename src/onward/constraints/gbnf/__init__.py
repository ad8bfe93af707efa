"""GBNF, llama.cpp's notation of grammars: parsed as llama-grammar.cpp does, and written as llguidance's Lark."""
