"""The ledger of the server "ledger": the requests that it has before it starts."""

from __future__ import annotations

from msgspec.structs import replace

from onward.service.keys import create_key
from onward.service.ledger import write_row
from onward.service.limits import Limits
from onward.service.records import LedgerRow
from onward.service.store import Store

ADMIN = "sk-admin-parity-0123456789abcdef"
DAY = 86_400
MIDNIGHT = 20_000 * DAY
NUM_DAYS = 30
_ROW = LedgerRow(
    id="", started_ms=0, ended_ms=0, key_id="key_1", key_name="alice", model="m", fingerprint="", route="", seed="",
    finish_reasons="", status=200, prompt_tokens=10, cached_tokens=4, completion_tokens=5, computed_tokens=5,
    delivered_tokens=5, prompt_cost=2_500_000, completion_cost=500_000, first_token_ms=None,
)  # fmt: skip


def fill(store: Store) -> None:
    """On day 0 four requests of m and one of n that end at 40,000 s, and one that failed; on day 2 two, and three lines
    of a batch; on day 29 one."""
    moments = [(0, "m", 200, "")] * 4 + [(0, "n", 499, ""), (0, "m", 500, "")]
    moments += [(2, "m", 200, "")] * 2 + [(2, "m", 200, "batch_1")] * 3 + [(29, "m", 200, "")]
    with store.begin() as connection:
        create_key(connection, ADMIN, "chief", Limits(), store.clock(), is_admin=True)
        for number, (day, model, status, batch) in enumerate(moments):
            ended_ms = (MIDNIGHT + day * DAY + 40_000) * 1000
            row = replace(_ROW, id=str(number), ended_ms=ended_ms, model=model, status=status, batch=batch)
            write_row(connection, row, None, None)
