"""Who may call: whoever holds a token; without tokens, programs of this machine."""

from __future__ import annotations

import hashlib
import ipaddress
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent_sdk.errors import InputError, RefusedError, because

LEAST_CHARACTERS: Final = 16
"""A shorter token could be guessed."""


@dataclass(frozen=True)
class Address:
    """Where to listen; port 0 is any that is free."""

    host: str
    port: int

    @classmethod
    def parsed(cls, text: str) -> Address:
        """From ``HOST:PORT``, ``[HOST]:PORT`` or ``PORT``. Raises InputError."""
        host, _, port = text.rpartition(":")
        if not (port.isascii() and port.isdigit()) or int(port) > 65535:
            raise InputError(f"'{text}' is no address to listen on: HOST:PORT, such as 127.0.0.1:8000")
        return cls(host.strip("[]") or "127.0.0.1", int(port))

    def listening(self, backlog: int | None = None) -> socket.socket:
        """A socket that listens there. Raises InputError where this address cannot be had."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family, backlog=backlog)
        except OSError as error:
            raise InputError(f"cannot listen on {self}: {because(error)}") from None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Tls:
    """Files in PEM: a certificate with what it is signed by, and its key."""

    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """What HTTP connections are wrapped in. Raises InputError where the two do not belong together."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            made.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            raise InputError(f"{self.certificate} and {self.key} are no certificate with its key: {error}") from None
        return made


class Access:
    """Tokens as digests, so that comparing them takes no time that tells anything.

    Args:
        tokens: those that may call; without any, a request has to name this machine as its host, so that no page in a
            browser calls by way of a name that it makes point here.
    """

    def __init__(self, tokens: list[str]) -> None:
        for token in tokens:
            if len(token) < LEAST_CHARACTERS or not token.isascii() or not token.isprintable() or " " in token:
                told = f"a token has at least {LEAST_CHARACTERS} visible characters of ASCII, and no spaces"
                raise InputError(f"{told}; `openssl rand -hex 32` makes one")
        self._digests = frozenset(map(_digest, tokens))

    @classmethod
    def read(cls, file: Path | None) -> Access:
        """From a file with a token a line; lines that begin with # say something about them. Raises InputError."""
        if file is None:
            return cls([])
        try:
            lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"the tokens in '{file}' cannot be read: {because(error)}") from None
        tokens = [line for line in lines if line and not line.startswith("#")]
        if not tokens:
            raise InputError(f"'{file}' holds no token")
        return cls(tokens)

    def refuse_open(self, address: Address) -> None:
        """Raise InputError for an address that others reach, where nobody needs a token."""
        if not self._digests and not is_loopback(address.host):
            raise InputError(f"{address} is reached from other machines: give tokens (--tokens FILE)")

    def check(self, authorization: str, host: str) -> None:
        """Raise RefusedError unless the request may be served.

        Args:
            authorization: what it shows, ``Bearer TOKEN``.
            host: whom it means to reach, with or without a port.
        """
        if self._digests:
            kind, _, token = authorization.partition(" ")
            if kind.lower() != "bearer" or _digest(token.strip()) not in self._digests:
                raise RefusedError(401, "no token, or one that this server does not know: Authorization: Bearer TOKEN")
        elif not is_loopback(host.rpartition(":")[0].strip("[]") if host.rpartition(":")[2].isdigit() else host):
            raise RefusedError(403, f"'{host}' is no name of this machine's own: without tokens only that is served")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
