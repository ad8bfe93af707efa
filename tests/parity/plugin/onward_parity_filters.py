"""A content filter that breaks on purpose, for rows about errors of ours: it raises at a text that holds `q`."""


def broken(text: str) -> list[tuple[int, int]]:
    if "q" in text:
        raise RuntimeError("the secret reason")
    return []


broken.longest = 1  # type: ignore[attr-defined]
