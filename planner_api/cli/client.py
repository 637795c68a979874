"""One call on a planner's API, its pages joined, its refusals in one sentence with what to do next."""

import json
import re
from collections.abc import Mapping, Sequence, Set
from typing import Any
from urllib.parse import quote

import httpx

from planner_api.cli.calls import Call
from planner_api.compression import zstd
from planner_api.errors import UsageError

PLANNER = "http://127.0.0.1:8000"
"""Where `hope-planner serve` listens unless told otherwise."""
PLANNER_VARIABLE = "HOPE_PLANNER_URL"
TOKEN_VARIABLE = "HOPE_ADMIN_TOKEN"
"""Of an admin or a viewer; ``HOPE_TOKEN`` is a device's, and read by the agent alone."""
TIMEOUT_S = 30.0
PAGE = 100
"""Entries asked for at once."""
CAUSE = re.compile(r"(?:(?:path|query)\.)?(\w+)(?:\.\w+)*:? (.*)", re.DOTALL)
"""What the planner says of a field that cannot be: the field, in a list with the item's number, and why."""
SHOULD = re.compile(r"^\w+ should ")
LISTED = {
    "release_id": ("release", "releases list"),
    "plan_id": ("plan", "plans list"),
    "device_id": ("device", "devices list"),
    "model_hash": ("model's hash", "fleet models"),
    "head": ("head of the log", "audit verify"),
}
"""What such a word is called, and which command shows them."""


class CallError(Exception):
    """The planner refused, or there is none; the message says what to do next.

    Args:
        causes: fields that cannot be as they were given, each with why.
    """

    def __init__(self, detail: str, causes: Sequence[str] = ()) -> None:
        super().__init__(detail)
        self.causes = tuple(causes)


def open_client(url: str, token: str | None) -> httpx.Client:
    """A connection to the planner at an address. Raises UsageError: that is no address, or the token is none."""
    if token and not re.fullmatch(r"[\x21-\x7e]+", token):
        raise UsageError("a token has no spaces: copy it as it was printed")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        if not (parsed := httpx.URL(url)).host or parsed.scheme not in ("http", "https"):
            raise httpx.InvalidURL(url)
    except httpx.InvalidURL:
        raise UsageError(f"'{url}' is no address such as http://127.0.0.1:8000") from None
    return httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S)


def ask(client: httpx.Client, call: Call, given: Mapping[str, Any], limit: int = 1) -> Any:
    """Make a call and return what it answers; of a page's entries, over as many pages as it takes, at most ``limit``.

    Raises:
        UsageError: something that was typed cannot be.
        CallError: a refusal, or no planner there.
    """
    path = re.sub(r"\{(\w+)\}", lambda found: _segment(str(given[found[1]])), call.path)
    sent = (*call.arguments, *(option.name for option in call.body))
    body = {name: given[name] for name in sent if given.get(name) is not None}
    asked = (*call.asked, *(option.name for option in call.query))
    query = {name: given[name] for name in asked if given.get(name) is not None}
    shown, changes = {call.rows, call.only, call.watched} - {""}, call.method != "GET"
    try:
        if not call.cursor:
            return checked(client, send(client, call.method, path, query, body), shown, empty=changes)
        entries: list[Any] = []
        while True:
            more = {"limit": min(PAGE, limit - len(entries))}
            page = checked(client, send(client, call.method, path, query | more, {}), shown)
            entries += page[call.rows]
            if page.get("next") is None or len(entries) >= limit:
                return page | {call.rows: entries}
            query[call.cursor] = page["next"]
    except CallError as error:
        if not error.causes:
            raise
        raise UsageError(_of_typed(error.causes[0], call, given)) from None


def _segment(word: str) -> str:
    """A word as one segment of a path; of dots alone it would lead to another resource."""
    return quote(word, safe="") if word.strip(".") else word.replace(".", "%2E")


def checked(client: httpx.Client, answer: dict[str, Any], shown: Set[str], *, empty: bool = False) -> dict[str, Any]:
    """An answer that has what is shown of it, and may be ``empty``.

    Raises:
        CallError: somebody else answered, or another version.
    """
    if not shown <= answer.keys() or not (answer or empty):
        raise CallError(f"{client.base_url} answered, but not as a planner of this version does")
    return answer


def _of_typed(cause: str, call: Call, given: Mapping[str, Any]) -> str:
    """Why a field cannot be as it was given, said of the option or argument that it was typed as."""
    found = CAUSE.fullmatch(cause)
    if found is None or found[1] not in given:
        return cause
    name, why = found.groups()
    if "should match pattern" in why:
        if (listed := LISTED.get(name)) is None:
            return f"'{given[name]}' is no name: letters and digits, with signs such as . _ - after the first"
        return f"'{given[name]}' is no {listed[0]}: `hope-planner {listed[1]}` shows them"
    typed = {option.name: option.typed for option in (*call.query, *call.body)}.get(name, name.upper())
    why = SHOULD.sub("must ", why)
    return f"{typed} {why}" if why.startswith("must ") else f"{typed}: {why}"


def send(client: httpx.Client, method: str, path: str, query: Mapping[str, Any], body: Any) -> dict[str, Any]:
    content, headers = None, {}
    if method in ("POST", "PUT"):
        content = zstd(json.dumps(body).encode())
        headers = {"content-type": "application/json", "content-encoding": "zstd"}
    try:
        answer = client.request(method, path, params=query, content=content, headers=headers)
    except httpx.RequestError as error:
        raise CallError(f"no planner answers at {client.base_url} ({error}): {_cure(error)}") from None
    try:
        found = answer.json() if answer.content else {}
        if answer.is_success:
            return dict(found)
        detail, causes = str(found["detail"]), list(map(str, found.get("errors", ())))
    except (ValueError, KeyError, TypeError, RecursionError):
        detail, causes = f"{client.base_url} answered {answer.status_code}, and not as a planner does", []
    cure = {
        401: f"; give an admin's as {TOKEN_VARIABLE} or --token: `hope-planner admin-token` makes the first one where "
        "the planner runs",
        403: f"; give one as {TOKEN_VARIABLE} or --token",
    }.get(answer.status_code, "")
    if answer.status_code == 404 and detail.startswith("there is nothing at"):
        cure = f"; is {client.base_url} its whole address, and no more than that?"
    raise CallError(f"{detail.rstrip('.')}{cure}", causes)


def _cure(error: httpx.RequestError) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "where its certificate is of an authority of your own, name that one's file in SSL_CERT_FILE"
    if "WRONG_VERSION_NUMBER" in str(error):
        return "does it answer http, without TLS?"
    if isinstance(error, httpx.RemoteProtocolError):
        return "does it answer https?"
    return f"name it with --planner or {PLANNER_VARIABLE}, or start one with `hope-planner serve`"
