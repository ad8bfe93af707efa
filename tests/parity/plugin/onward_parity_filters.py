"""A content filter that fails on purpose, for rows about internal errors: it raises for a text that contains `q`."""


def broken(text: str) -> list[tuple[int, int]]:
    if "q" in text:
        raise RuntimeError("the secret reason")
    return []


broken.longest = 1  # type: ignore[attr-defined]
