"""The guard in front of every route: who is it, may it, and not too often.

Pure ASGI and, for a caller it knows, without a query. Whatever stands behind it need not ask.
"""

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from cachetools import TTLCache

from hope_schema.proof import hash_token
from planner_api.concurrency import Gathering, Turns
from planner_api.db.engine import Database
from planner_api.devices import repository
from planner_api.errors import ForbiddenError, TooOftenError, UnauthorisedError
from planner_api.jobs.news import News
from planner_api.remembered import Remembered
from planner_api.web.asgi import Asgi, Scope, values_of
from planner_api.web.principal import Principal, bearer, principal_of, spent
from planner_api.web.problems import status_of
from planner_api.web.rate import RateLimit

OPEN = frozenset({"/healthz", "/readyz", "/metrics"})
"""Answered without a token, for probes and scrapers inside; the chart's ingress routes nobody there."""
ENTRANCES = frozenset({"/devices", "/devices/proof"})
"""Where devices post that have no token of this planner, or do not know yet that they have: the routes themselves say
whom they answer."""
REFUSED_S = 1.0
"""How long who asks too often waits for hearing so, on average."""
WRONG = frozenset({400, 401, 413, 415, 422, 429})
"""How requests are answered that nobody sends who keeps to the contract."""
WRONG_COUNTS = 10
"""As how many requests each of them counts: what it costs is found out only by reading it."""
GUESS = 10
"""As how many requests of its address a token or cookie counts that opens nothing: the database was asked for it."""
COUNTS_PER_S = 1000
"""As how many requests a second of computing counts that was done for one."""
AT_ONCE, WAITING = 16, 64
"""Requests of one device that are answered at once, from the first byte of a body to the last that it reads, and that
may wait for that."""
ENDED = "this token has expired; a device gets a new one with `hope-agent enrol`"
NO_TOKEN = "this planner needs a token; a device gets its own with `hope-agent enrol`"

ASKED_AT_ONCE = 500
"""Tokens that one query asks for: devices of a large fleet come too seldom to be known from one call to the next."""
ASKED_APART_S = 0.02
"""Where several ask at once, those of this long are asked for together."""
MAX_KNOWN = 200_000
"""Tokens remembered at once."""
MAX_UNKNOWN = 10_000
"""Tokens remembered as unknown at once; apart from the known ones, so that guesses drive out none of those."""
KNOWN_S = 600.0
"""How long a token is trusted without asking the database again; revocations are announced and act at once."""
UNKNOWN_S = 5.0
"""How long an unknown token stays unknown without asking again."""
LEEWAY_S = 30.0
"""Grace on expiry, for replicas whose clocks differ."""


@dataclass(frozen=True)
class KnownToken:
    """A token as it is remembered: number, bearer, when it expires (UTC), until when that is trusted (monotonic)."""

    token_id: int
    principal: Principal
    expires_at: float
    known_until: float


class Tokens:
    """Bearers by token, remembered in this process and forgotten when a revocation is announced."""

    def __init__(self, database: Database, news: News) -> None:
        self._database = database
        self._known: Remembered[str, KnownToken] = Remembered(MAX_KNOWN)
        self._unknown: TTLCache[str, None] = TTLCache(MAX_UNKNOWN, UNKNOWN_S)
        self._asked: Gathering[str, KnownToken | None] = Gathering(self._ask, most=ASKED_AT_ONCE, apart_s=ASKED_APART_S)
        self._seen: set[str] = set()
        news.on(repository.REVOKED, self._known.forget)

    def known(self, token_hash: str) -> KnownToken | None:
        found = self._known.get(token_hash)
        return found if found is not None and time.monotonic() < found.known_until else None

    async def look_up(self, token_hash: str) -> KnownToken | None:
        """Ask the database, and remember the answer; None for a token that is unknown or revoked."""
        if token_hash in self._unknown:
            return None
        return await self._asked.add(token_hash)

    async def _ask(self, token_hashes: Sequence[str]) -> list[KnownToken | None]:
        generation = self._known.generation
        async with self._database.read() as session:
            rows = await repository.find_tokens(session, token_hashes)
        return [self._remember(each, rows.get(each), generation) for each in token_hashes]

    def _remember(self, token_hash: str, row: Any, generation: int) -> KnownToken | None:
        if row is None:
            self._unknown[token_hash] = None
            return None
        if row.scope == "device":
            principal = Principal("device", f"device:{row.device_id}", row.device_id)
        else:
            principal = bearer(row.scope, row.id)
        expires_at = row.expires_at.timestamp() if row.expires_at is not None else math.inf
        found = KnownToken(row.id, principal, expires_at, time.monotonic() + KNOWN_S)
        self._known.put(token_hash, found, generation)
        return found

    def saw(self, device_id: str) -> None:
        self._seen.add(device_id)

    async def flush(self) -> None:
        """Write down which devices were seen since the last call."""
        if seen := frozenset(self._seen):
            async with self._database.write() as session:
                await repository.saw(session, seen)
            self._seen -= seen


class Guard:
    """ASGI middleware: authenticates, authorises and limits, then sets ``scope["state"]["principal"]``.

    Where no token is ``required``, a caller without one may do everything. ``per_address`` limits an address, and its
    network, in requests without a valid token: an address beyond it is refused before a token that this process does
    not know costs a query. ``refused`` counts refusals, by the quota's name.
    """

    def __init__(
        self,
        app: Asgi,
        tokens: Tokens,
        *,
        required: bool,
        per_token: RateLimit,
        per_address: RateLimit,
        refused: Counter[str],
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._required = required
        self._per_token = per_token
        self._per_address = per_address
        self._turns = Turns("requests", slots=None, each=AT_ONCE, waiting=WAITING, refused=refused)

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Pass the request on. Raises PlannerError for one that is not admitted."""
        path, caller = scope["path"], ""
        limit = self._per_address
        try:
            given = _authorization(scope)  # of every path, so that all refuse two alike
            if path not in OPEN:
                if path in ENTRANCES and scope["method"] == "POST":
                    caller = address_of(scope)
                    await refuse_for(limit.hit(caller))
                elif given is not None:
                    token_hash = _hash_of(given)
                    known = self._tokens.known(token_hash) or await self._look_up(scope, token_hash)
                    if known.expires_at + LEEWAY_S < time.time():
                        raise UnauthorisedError(ENDED)
                    limit, caller = self._per_token, known.principal.name
                    if wait_s := limit.hit(caller):
                        await refuse_for(wait_s)
                    self._admit(scope, known.principal)
                elif self._required:
                    raise UnauthorisedError(NO_TOKEN)
        except UnauthorisedError:
            await refuse_for(self._per_address.hit(address_of(scope)))
            raise
        device = principal_of(scope).device_id
        try:
            async with self._turns.turn(device) if device is not None else nullcontext():
                await self._app(scope, receive, send)
        except Exception as error:
            if caller and status_of(error) in WRONG:
                limit.count(caller, WRONG_COUNTS - 1)
            if isinstance(error, TooOftenError):  # beyond a quota: as slowly as who is beyond a rate
                await _keep_waiting()
            raise
        finally:
            if caller and (spent_s := spent(scope)):
                limit.count(caller, spent_s * COUNTS_PER_S)

    async def _look_up(self, scope: Scope, token_hash: str) -> KnownToken:
        """Ask for a token that is not remembered. Raises TooOftenError for an address of too many guesses."""
        await refuse_for(self._per_address.wait(address_of(scope)))
        known = await self._tokens.look_up(token_hash)
        if known is None:
            self._per_address.count(address_of(scope), GUESS - 1)
            raise UnauthorisedError(
                "this token is unknown or was revoked; a device gets a new one with `hope-agent enrol`"
            )
        return known

    def _admit(self, scope: Scope, principal: Principal) -> None:
        if not principal.may(scope["method"], scope["path"]):
            raise ForbiddenError("scope-missing", "this token does not allow this; it takes an admin's")
        if principal.device_id is not None:
            self._tokens.saw(principal.device_id)
        scope["state"]["principal"] = principal


async def refuse_for(wait_s: float) -> None:
    """Raise TooOftenError after a moment, unless there is nothing to wait for.

    NOTE: who floods gets one refusal a second on a connection; answered at once, they would keep everybody waiting.
    """
    if wait_s:
        await _keep_waiting()
        raise TooOftenError("too-many-requests", "too many requests; slow down", retry_after_s=wait_s)


async def _keep_waiting() -> None:
    """Wait before a refusal, each for another time: many connections that wake together would hold up everybody."""
    await asyncio.sleep(REFUSED_S * random.uniform(0.5, 1.5))


def bearer_of(scope: Scope, why: str) -> str:
    """The hash of the token of a request that must have one. Raises UnauthorisedError with ``why`` otherwise."""
    given = _authorization(scope)
    if given is None:
        raise UnauthorisedError(why)
    return _hash_of(given)


def _authorization(scope: Scope) -> bytes | None:
    """The request's Authorization header; None without one. Raises UnauthorisedError for more than one."""
    given = values_of(scope, b"authorization")
    if len(given) > 1:
        raise UnauthorisedError("the request has several Authorization headers; send one")
    return given[0] if given else None


def _hash_of(authorization: bytes) -> str:
    """The hash of a token. Raises UnauthorisedError for a header of another kind."""
    kind, _, token = authorization.partition(b" ")
    token = token.strip()
    if kind.lower() != b"bearer" or not token or len(token) > 256:
        raise UnauthorisedError("the Authorization header must read 'Bearer ' and a token")
    return hash_token(token)


def address_of(scope: Scope) -> str:
    """Where a request comes from, as rate limits know it."""
    client = scope.get("client")
    return client[0] if client else "unknown"
