"""The protocol's calls over HTTP: who may make them, where they lead, and what becomes of what goes wrong."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import unquote

from pydantic import BaseModel, Field, ValidationError

from agent_sdk.errors import RefusedError, printable
from agent_sdk.server.access import Access
from agent_sdk.server.admission import Admission
from agent_sdk.server.connection import Exchange
from agent_sdk.server.held import MOST_HELD, Shelf
from agent_sdk.server.lending import Measuring
from agent_sdk.server.metrics import Metrics
from agent_sdk.server.models import Models
from agent_sdk.server.said import model_config, model_statistics, repository_index, server_metadata
from agent_sdk.server.wire import Form

log = logging.getLogger(__name__)

MOST_JSON: Final = 16 * 2**20
"""Most bytes of JSON in a request."""
READ: Final = 24
"""Bytes of memory that a byte of JSON may come to take once it is read."""
_MODEL: Final = r"/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[^/]+))?"
MOST_ECHOED: Final = 2**22
"""Most bytes that are given back to measure the way."""
_Route = Callable[[Exchange, dict[str, str]], None]


class _Load(BaseModel):
    parameters: dict[str, Any] = {}


class _Drop(BaseModel):
    names: Annotated[list[str], Field(max_length=MOST_HELD)]


_Message = TypeVar("_Message", bound=BaseModel)


class Http:
    """What answers requests; may be called from any number of threads.

    Args:
        models: what is served.
        admission: who is let in.
        access: who may call.
        metrics: what Prometheus reads.
    """

    def __init__(self, models: Models, admission: Admission, access: Access, metrics: Metrics) -> None:
        self._models, self._admission, self._access, self._metrics = models, admission, access, metrics
        routes: tuple[tuple[str, str, _Route], ...] = (
            ("POST", rf"{_MODEL}/infer", self._infer),
            ("GET", r"/v2/health/live", lambda exchange, _: exchange.answer(200, b'{"live": true}')),
            ("GET", r"/v2/health/ready", self._ready),
            ("GET", r"/v2/?", lambda exchange, _: _say(exchange, server_metadata())),
            ("GET", r"/v2/models/stats", lambda exchange, _: _say(exchange, model_statistics(self._models.all))),
            ("GET", rf"{_MODEL}/ready", self._model_ready),
            ("GET", rf"{_MODEL}/stats", self._stats),
            ("GET", rf"{_MODEL}/config", self._config),
            ("GET", _MODEL, self._metadata),
            ("POST", r"/v2/repository/index", lambda exchange, _: _say(exchange, repository_index(self._models.all))),
            ("POST", r"/v2/repository/models/(?P<name>[^/]+)/load", self._load),
            ("POST", r"/v2/repository/models/(?P<name>[^/]+)/unload", self._unload),
            ("GET", r"/v2/hope", self._offer),
            ("POST", r"/v2/hope/link", self._link),
            ("POST", r"/v2/hope/tensors/drop", self._drop),
            ("POST", r"/v2/hope/models/(?P<name>[^/]+)/measure", self._measure),
            ("GET", r"/metrics", self._scrape),
        )
        self._routes = [(method, re.compile(path), route) for method, path, route in routes]

    def __call__(self, exchange: Exchange) -> None:
        """Answer one request, whatever it is. Raises OSError where the client has gone."""
        try:
            self._access.check(exchange.fields.get("authorization", ""), exchange.fields.get("host", ""))
            route, named = self._route(exchange)
            route(exchange, named)
        except RefusedError as error:
            self._refuse(exchange, error)
        except OSError:
            raise
        except Exception as error:
            log.exception("a request failed: %s %s", exchange.method, printable(exchange.path))
            self._refuse(exchange, RefusedError(500, f"the server failed: {type(error).__name__}"))

    def _route(self, exchange: Exchange) -> tuple[_Route, dict[str, str]]:
        known = False
        method = "GET" if exchange.method == "HEAD" else exchange.method
        for wanted, path, route in self._routes:
            if found := path.fullmatch(exchange.path):
                known = True
                if wanted == method:
                    return route, {key: unquote(value) for key, value in found.groupdict("").items()}
        if known:
            raise RefusedError(405, f"{exchange.method} is no way to call {printable(exchange.path[:128])}")
        raise RefusedError(404, f"nothing is offered at {printable(exchange.path[:128])}")

    @staticmethod
    def _refuse(exchange: Exchange, error: RefusedError) -> None:
        if exchange.answered:
            exchange.goes_on = False  # the answer has begun: what was sent of it is all that can be
            return
        fields: dict[str, str | int] = {"www-authenticate": "Bearer"} if error.status == 401 else {}
        if error.status == 503:
            fields = {"retry-after": 1}
        exchange.answer(error.status, json.dumps({"error": str(error)}).encode(), fields=fields)

    def _infer(self, exchange: Exchange, named: dict[str, str]) -> None:
        served = self._models.find(named["name"], named["version"])
        given = exchange.fields.get("inference-header-content-length", str(exchange.length))
        size = int(given) if given.isdigit() and len(given) < 19 else -1
        with self._admission.admitted() as room:
            if not size and exchange.length:
                raise RefusedError(400, "a body without JSON is not offered: say what the bytes are")
            if "content-encoding" not in exchange.fields and not 0 <= size <= exchange.length:
                raise RefusedError(400, "Inference-Header-Content-Length is no number of bytes of this body")
            if not 0 <= size <= MOST_JSON:
                raise RefusedError(413, f"the JSON of a request may have {MOST_JSON} bytes; send tensors as bytes")
            room.take(size * READ)
            body = exchange.body(room.take, aligned_at=size)
            if "inference-header-content-length" not in exchange.fields:
                if len(body) > MOST_JSON:
                    raise RefusedError(413, f"the JSON of a request may have {MOST_JSON} bytes; send tensors as bytes")
                room.take(max(0, len(body) - size) * READ)
                size = len(body)
            elif size > len(body):
                raise RefusedError(400, "Inference-Header-Content-Length is no number of bytes of this body")
            form = Form.read(served, bytes(body[:size]))
            shelf = self._shelf(exchange) if form.holds else None
            inference = form.inference(body[size:], shelf)
            began = time.perf_counter()
            outputs = self._models.infer(served, inference, room, "http")
            took = f"run;dur={(time.perf_counter() - began) * 1e3:.3f}"
            exchange.answer(200, *form.answer(outputs, room, shelf), fields={"server-timing": took})

    def _shelf(self, exchange: Exchange) -> Shelf:
        held, connection = self._models.lending.held, exchange.connection
        connection.when_ended = held.release
        return Shelf(held, connection)

    def _drop(self, exchange: Exchange, _: dict[str, str]) -> None:
        with self._admission.admitted() as room:
            if exchange.length > MOST_JSON:
                raise RefusedError(413, f"the JSON of a request may have {MOST_JSON} bytes")
            room.take(exchange.length * READ)
            self._models.lending.held.drop(_read(_Drop, exchange.body(room.take)).names)
            exchange.answer(200, b"{}")

    def _ready(self, exchange: Exchange, _: dict[str, str]) -> None:
        if self._admission.draining:
            raise RefusedError(503, "the server is being stopped")
        exchange.answer(200, b'{"ready": true}')

    def _model_ready(self, exchange: Exchange, named: dict[str, str]) -> None:
        served = self._models.find(named["name"], named["version"])
        _say(exchange, {"name": served.name, "ready": True})

    def _metadata(self, exchange: Exchange, named: dict[str, str]) -> None:
        _say(exchange, self._models.find(named["name"], named["version"]).metadata())

    def _config(self, exchange: Exchange, named: dict[str, str]) -> None:
        _say(exchange, model_config(self._models.find(named["name"], named["version"])))

    def _stats(self, exchange: Exchange, named: dict[str, str]) -> None:
        _say(exchange, model_statistics([self._models.find(named["name"], named["version"])]))

    def _load(self, exchange: Exchange, named: dict[str, str]) -> None:
        lending = self._models.lending
        with self._admission.admitted() as room:
            room.take(2 * exchange.length)  # as it is sent, and as it is read
            body = exchange.body(room.take)
            lending.load(named["name"], _read(_Load, body).parameters, room.take)
            exchange.answer(200, b"{}")

    def _unload(self, exchange: Exchange, named: dict[str, str]) -> None:
        self._models.lending.unload(named["name"])
        _say(exchange, {})

    def _offer(self, exchange: Exchange, _: dict[str, str]) -> None:
        exchange.answer(200, self._models.lending.offer().model_dump_json().encode())

    def _link(self, exchange: Exchange, _: dict[str, str]) -> None:
        """Take in bytes and give back as many as are asked for, so that the way here can be measured."""
        wanted = exchange.fields.get("x-hope-bytes", "0")
        if not self._models.lending or not wanted.isdigit() or int(wanted) > MOST_ECHOED:
            raise RefusedError(400, f"X-Hope-Bytes is a number up to {MOST_ECHOED}")
        with self._admission.admitted() as room:
            room.take(int(wanted))
            exchange.body(room.take)
            exchange.answer(200, b"", [memoryview(bytes(int(wanted)))])

    def _measure(self, exchange: Exchange, named: dict[str, str]) -> None:
        with self._admission.admitted() as room:
            if exchange.length > MOST_JSON:
                raise RefusedError(413, f"the JSON of a request may have {MOST_JSON} bytes")
            room.take(exchange.length * READ)
            wanted = _read(Measuring, exchange.body(room.take))
            found = self._models.lending.measure(named["name"], wanted)
            exchange.answer(200, found.model_dump_json().encode())

    def _scrape(self, exchange: Exchange, _: dict[str, str]) -> None:
        fields: dict[str, str | int] = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
        exchange.answer(200, self._metrics.render(), fields=fields)


def _say(exchange: Exchange, said: object) -> None:
    if exchange.length > MOST_JSON:
        raise RefusedError(413, "the body is longer than anything that may be said here")
    exchange.body(lambda _: None)
    exchange.answer(200, json.dumps(said).encode())


def _read(kind: type[_Message], body: memoryview) -> _Message:
    try:
        return kind.model_validate_json(bytes(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise RefusedError(400, f"{where}: {first['msg']}") from None
