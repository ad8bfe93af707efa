"""Token generation: scheduling, KV cache, sampling. Uses token ids and bytes; never JSON, HTTP or asyncio."""
