"""The protocol's calls over HTTP: who may make them, where they lead, and what becomes of what goes wrong."""

import json
import logging
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import unquote

from pydantic import BaseModel, Field, ValidationError

from agent_sdk.errors import RefusedError, printable
from agent_sdk.server.access import Access
from agent_sdk.server.admission import Admission, Room
from agent_sdk.server.connection import Exchange, Route
from agent_sdk.server.held import MOST_HELD
from agent_sdk.server.lending import Measuring
from agent_sdk.server.metrics import Metrics
from agent_sdk.server.models import Models
from agent_sdk.server.said import questions
from agent_sdk.server.wire import MOST_JSON, READ, Form, take_json
from agent_sdk.tables import faults

log = logging.getLogger(__name__)

_MODEL: Final = r"/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[^/]+))?"
MOST_ECHOED: Final = 2**22
"""Most bytes that are given back to measure the way."""


class _Load(BaseModel):
    parameters: dict[str, Any] = {}


class _Drop(BaseModel):
    names: Annotated[list[str], Field(max_length=MOST_HELD)]


_Message = TypeVar("_Message", bound=BaseModel)


class Http:
    """What answers requests; may be called from any number of threads."""

    def __init__(self, models: Models, admission: Admission, access: Access, metrics: Metrics) -> None:
        self._models, self._admission, self._access, self._metrics = models, admission, access, metrics
        routes: tuple[tuple[str, str, Route], ...] = (
            ("POST", rf"{_MODEL}/infer", self._infer),
            ("GET", r"/v2/health/live", lambda exchange, _: exchange.answer(200, b'{"live": true}')),
            ("GET", r"/v2/health/ready", self._ready),
            ("GET", r"/v2/?", self._telling("ServerMetadata")),
            ("GET", r"/v2/models/stats", self._telling("ModelStatistics")),
            ("GET", rf"{_MODEL}/ready", self._model_ready),
            ("GET", rf"{_MODEL}/stats", self._telling("ModelStatistics")),
            ("GET", rf"{_MODEL}/config", self._telling("ModelConfig", "config")),
            ("GET", _MODEL, self._telling("ModelMetadata")),
            ("POST", r"/v2/repository/index", self._telling("RepositoryIndex", "models")),
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
            head = exchange.head
            if head.leads is None:
                self._access.check(head.fields.get("authorization", ""), head.fields.get("host", ""))
                head.leads = self._found(head.method, head.path)
            route, named = head.leads
            route(exchange, named)
        except RefusedError as error:
            self._refuse(exchange, error)
        except OSError:
            raise
        except Exception as error:
            log.exception("a request failed: %s %s", exchange.head.method, printable(exchange.head.path))
            self._refuse(exchange, RefusedError(500, f"the server failed: {type(error).__name__}"))

    def _found(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        """Where a request leads. Raises RefusedError where nothing is there for it."""
        known = False
        for wanted, pattern, route in self._routes:
            if found := pattern.fullmatch(path):
                known = True
                if wanted == ("GET" if method == "HEAD" else method):
                    return route, {key: unquote(value) for key, value in found.groupdict("").items()}
        if known:
            raise RefusedError(405, f"{method} is no way to call {printable(path[:128])}")
        raise RefusedError(404, f"nothing is offered at {printable(path[:128])}")

    @staticmethod
    def _refuse(exchange: Exchange, error: RefusedError) -> None:
        if exchange.answered:
            exchange.goes_on = False  # the answer has begun: what was sent of it is all that can be
            return
        fields = {401: [("www-authenticate", "Bearer")], 503: [("retry-after", "1")]}.get(error.status, [])
        exchange.answer(error.status, json.dumps({"error": str(error)}).encode(), fields=fields)

    def _infer(self, exchange: Exchange, named: Mapping[str, str]) -> None:
        served = self._models.find(named["name"], named["version"])
        given = exchange.head.number("inference-header-content-length", MOST_JSON)
        with Room(self._admission) as room:
            body = exchange.body(room.take, aligned_at=given)
            size = given or len(body)
            if size > len(body):
                raise RefusedError(400, f"Inference-Header-Content-Length is {size}, and the body has {len(body)}")
            form = Form.read(served, body[:size], room)
            held, connection = self._models.lending.held if form.holds else None, exchange.connection
            if held is not None:
                connection.when_ended = held.release
            feed = form.feed(body[size:], held, connection)
            began = time.perf_counter()
            outputs = self._models.infer(served, feed, form.asked, room, "http")
            timing = _timing(began, time.perf_counter())
            exchange.answer(200, *form.answer(outputs, room, held, connection), [timing])

    @contextmanager
    def _told(
        self, exchange: Exchange, kind: type[_Message], most: int = MOST_JSON, each: int = READ
    ) -> Iterator[tuple[_Message, Room]]:
        """A message, whose request is admitted as long as the block lasts; see ``take_json``."""
        with Room(self._admission) as room:
            body = exchange.body(room.take)
            take_json(room, len(body), most, each)
            try:
                told = kind.model_validate_json(bytes(body))
            except ValidationError as error:
                raise RefusedError(400, next(faults(error))) from None
            yield told, room

    def _drop(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        with self._told(exchange, _Drop) as (told, __):
            self._models.lending.held.drop(told.names)
            exchange.answer(200, b"{}")

    def _ready(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        if self._admission.draining:
            raise RefusedError(503, "the server is being stopped")
        exchange.answer(200, b'{"ready": true}')

    def _model_ready(self, exchange: Exchange, named: Mapping[str, str]) -> None:
        served = self._models.find(named["name"], named["version"])
        _say(exchange, {"name": served.name, "ready": True})

    def _telling(self, call: str, part: str | None = None) -> Route:
        """Answer with what the protocol's call says, or with a part of it."""
        ask = questions(self._models)[call]

        def tell(exchange: Exchange, named: Mapping[str, str]) -> None:
            said = ask(named.get("name", ""), named.get("version", ""))
            _say(exchange, said if part is None else said[part])

        return tell

    def _load(self, exchange: Exchange, named: Mapping[str, str]) -> None:
        lending = self._models.lending
        with self._told(exchange, _Load, self._admission.memory, 2) as (told, room):
            lending.load(named["name"], told.parameters, room.take)
            exchange.answer(200, b"{}")

    def _unload(self, exchange: Exchange, named: Mapping[str, str]) -> None:
        self._models.lending.unload(named["name"])
        _say(exchange, {})

    def _offer(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        exchange.answer(200, self._models.lending.offer().model_dump_json().encode())

    def _link(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        """Take in bytes and give back as many as are asked for, so that the way here can be measured."""
        wanted = exchange.head.number("x-hope-bytes", MOST_ECHOED) if self._models.lending else 0
        with Room(self._admission) as room:
            room.take(wanted)
            exchange.body(room.take)
            now = time.perf_counter()
            exchange.answer(200, b"", [memoryview(bytes(wanted))], [_timing(now, now)])

    def _measure(self, exchange: Exchange, named: Mapping[str, str]) -> None:
        with self._told(exchange, Measuring) as (wanted, _):
            found = self._models.lending.measure(named["name"], wanted)
            exchange.answer(200, found.model_dump_json().encode())

    def _scrape(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        exchange.answer(200, self._metrics.render(), kind="text/plain; version=0.0.4; charset=utf-8")


def _timing(began: float, ended: float) -> tuple[str, str]:
    """How long a run took and, so that an agent can place it in its trace, when it began by this machine's clock.

    In the answer's head: what is said in JSON is the same for every run of a network, so that agents read it once.
    """
    return "server-timing", f"run;dur={(ended - began) * 1e3:.3f};at={began * 1e3:.3f}"


def _say(exchange: Exchange, said: object) -> None:
    exchange.pass_over()
    exchange.answer(200, json.dumps(said).encode())
