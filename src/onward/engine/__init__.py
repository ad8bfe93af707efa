"""How tokens get made. Speaks token ids and bytes; never JSON, HTTP or asyncio."""
