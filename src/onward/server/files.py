"""The routes of files: uploads that stream into the store, lists, contents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onward.api.openai import files as api
from onward.api.routes import JSON, JsonObject, Route, respond_json
from onward.errors import ApiError, Forbidden, InvalidRequest, NotFound, RequestTooLarge
from onward.server.exchange import HttpExchange
from onward.server.multipart import Form, FormParser
from onward.server.running import ADMIN_KEY
from onward.service.batch_records import PART_BYTES, StorageFull, StoredFile
from onward.service.limits import NO_LIMITS
from onward.service.refusals import storage_refused
from onward.settings import Settings

if TYPE_CHECKING:  # a server without a database does not import what needs one
    from onward.service.batch_store import BatchStore, Receiving
    from onward.service.team import Team

NO_DATABASE = (
    "This server has no files and batches: it was started without --data-dir or --database, one of which they need."
)
UPLOAD_SECONDS = 3600.0
"""Longest time to receive a whole file, however steadily it arrives."""
FORM_BYTES = 1_000_000
"""How many bytes a form may have in addition to its file."""
CONTENT_TYPE = "application/octet-stream"


class Stored:
    """What files and batches have in common: the team's store, and the key that owns them."""

    def __init__(self, team: Team | None, settings: Settings) -> None:
        self._team = team
        self.settings = settings

    @property
    def store(self) -> BatchStore:
        """Raises NotFound where there is no database."""
        if self._team is None:
            raise NotFound(NO_DATABASE)
        return self._team.batches

    def key_of(self, exchange: HttpExchange) -> str:
        """Return the id of the key that owns what a request makes; "" where there are no keys. Raises Forbidden for an
        admin's."""
        if exchange.key is None:
            return ""
        if exchange.grant is not None and exchange.grant.is_admin:
            raise Forbidden(ADMIN_KEY)
        return exchange.key.public_id


class FileRoutes(Stored):
    async def create(self, exchange: HttpExchange) -> None:
        """Receive a file. Raises InvalidRequest, UnsupportedContentType, RequestTooLarge, RateLimited, Overloaded."""
        store, key_id = self.store, self.key_of(exchange)
        parser = FormParser(exchange.header(b"content-type") or "")
        grant = exchange.grant
        try:
            async with store.receiving(key_id, NO_LIMITS if grant is None else grant.limits) as receiving:
                upload = _Upload(receiving, parser.form, self.settings)
                async for chunk in exchange.chunks(api.MAX_FILE_BYTES + FORM_BYTES, UPLOAD_SECONDS):
                    parser.feed(chunk)
                    await upload.take()
                stored = await upload.finish()
        except ApiError:
            await exchange.discard_rest()
            raise
        await respond_json(exchange, file_object(stored))

    async def list(self, exchange: HttpExchange) -> None:
        limit = api.list_limit(exchange.query("limit"), api.MAX_LISTED_FILES, api.MAX_LISTED_FILES)
        newest, purpose = api.newest_first(exchange.query("order")), exchange.query("purpose") or ""
        after = await self._find(exchange, last) if (last := exchange.query("after")) else None
        found = await self.store.list_files(
            self.key_of(exchange), limit + 1, purpose=purpose, after=after, newest=newest
        )
        await respond_json(exchange, api.list_page(api.FileList, list(map(file_object, found)), limit))

    async def retrieve(self, exchange: HttpExchange) -> None:
        await respond_json(exchange, file_object(await self._find(exchange, exchange.path_value or "")))

    async def delete(self, exchange: HttpExchange) -> None:
        found = await self._find(exchange, exchange.path_value or "")
        await self.store.delete_file(found)
        await respond_json(exchange, api.FileDeleted(id=found.id))

    async def content(self, exchange: HttpExchange) -> None:
        """Send what a file contains, part by part as the client reads. Raises NotFound, ClientDisconnected."""
        found = await self._find(exchange, exchange.path_value or "")
        exchange.headers += [
            (b"content-length", b"%d" % found.bytes),
            (b"content-disposition", api.attachment(found.filename)),
        ]
        await exchange.start_response(200, CONTENT_TYPE)
        if exchange.method != "HEAD":
            async for part in self.store.parts(found):
                await exchange.send_chunk(part)
        await exchange.end_response()

    async def _find(self, exchange: HttpExchange, file_id: str) -> StoredFile:
        """Return a file of the key. Raises NotFound, also for another's."""
        found = await self.store.find_file(self.key_of(exchange), file_id)
        if found is None:
            raise api.no_such_file(file_id)
        return found


class _Upload:
    """Writes the file of a form into the store as it arrives."""

    def __init__(self, receiving: Receiving, form: Form, settings: Settings) -> None:
        self._receiving = receiving
        self._form = form
        self._checks = api.Upload(strict=settings.profile == "strict", max_line=settings.max_body)
        self._num_bytes = 0

    async def take(self, *, is_last: bool = False) -> None:
        """Write what has arrived of the file, in whole parts. Raises InvalidRequest, RequestTooLarge, RateLimited,
        Overloaded."""
        data = self._form.data
        while len(data) >= PART_BYTES or (is_last and data):
            part = bytes(data[:PART_BYTES])
            del data[:PART_BYTES]
            self._num_bytes += len(part)
            if self._num_bytes > api.MAX_FILE_BYTES:
                raise RequestTooLarge(
                    f"The file is larger than the {api.MAX_FILE_BYTES} bytes (200 MiB) that a batch may have.",
                    param="file",
                )
            self._checks.feed(part)
            try:
                await self._receiving.add(part)
            except StorageFull as full:
                raise storage_refused(*full.args) from None

    async def finish(self) -> StoredFile:
        """Return the whole file. Raises as `take`."""
        if not self._form.is_complete:
            raise InvalidRequest("The multipart body of your request ends before it is complete.")
        await self.take(is_last=True)
        purpose, seconds = self._checks.finish(self._form.filename, self._form.fields)
        return await self._receiving.finish(purpose, self._form.filename or "", seconds)


def file_object(stored: StoredFile) -> api.File:
    return api.File(
        id=stored.id,
        bytes=stored.bytes,
        created_at=stored.created_ms // 1000,
        filename=stored.filename,
        purpose=stored.purpose,
        expires_at=None if stored.expires_ms is None else stored.expires_ms // 1000,
    )


def everywhere(*routes: Route) -> tuple[Route, ...]:
    """Return routes under /v1, and the same for clients whose base URL is another."""
    return tuple(
        each
        for route in routes
        for each in (route, route.also(route.path.removeprefix("/v1")), route.also("/openai" + route.path))
    )


def _route(method: str, path: str, handler: Any, operation: Any, example: JsonObject) -> Route:
    parameters = (api.FILE_ID,) if "{id}" in path else ()
    return Route(method, path, handler, operation=operation, example=example, parameters=parameters)


ROUTES = everywhere(
    _route("POST", "/v1/files", FileRoutes.create, api.UPLOAD, {JSON: api.FILE_EXAMPLE}),
    _route("GET", "/v1/files", FileRoutes.list, api.LIST, {JSON: api.LIST_EXAMPLE}),
    _route("GET", "/v1/files/{id}", FileRoutes.retrieve, api.RETRIEVE, {JSON: api.FILE_EXAMPLE}),
    _route("DELETE", "/v1/files/{id}", FileRoutes.delete, api.DELETE, {JSON: api.DELETED_EXAMPLE}),
    _route("GET", "/v1/files/{id}/content", FileRoutes.content, api.CONTENT, {CONTENT_TYPE: api.CONTENT_EXAMPLE}),
)
