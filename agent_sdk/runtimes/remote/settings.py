"""Which hosts an agent may use: their owner names them, and thereby lets weights go there."""

from __future__ import annotations

import ssl
import tomllib
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from agent_sdk.errors import InputError, because
from agent_sdk.tables import Table, faults
from hope_schema.hosts import MAX_HOSTS, HostName

MOST_SERVED: Final = 256
ServedName = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^/\s]+$")]
"""What a server calls a model."""
SECURE: Final = {"http": False, "https": True, "grpc": False, "grpcs": True}
"""What addresses begin with, and whether that means TLS."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class HostSettings(Table):
    """One host.

    Attributes:
        address: ``https://HOST:PORT``, or ``http://`` on this machine or where ``plain`` says so; ``grpcs://`` and
            ``grpc://`` for a server of whole networks that is asked over gRPC.
        token: what it serves us for.
        certificate: whom its certificate is to be signed by, in PEM; the system's authorities by default.
        plain: whether tensors, weights and the token may cross the network as anybody can read them.
        processors: those that may be used, by the names that it has for them; all by default, but none where it
            ``serves``.
        link: what carries all that goes there and back, which hosts that name the same share: a radio, say. By default
            each has a link of its own.
        precision: ``fp16`` lets float32 cross the way there and back as float16, where a plan gains by it.
        serves: networks that it has anyway: what they are called there, by their names here.
    """

    address: str
    token: Annotated[str, Field(pattern=r"^[!-~]*$")] = ""
    certificate: Path | None = None
    plain: bool = False
    processors: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    link: HostName | None = None
    precision: Literal["fp32", "fp16"] = "fp32"
    serves: Annotated[dict[str, ServedName], Field(min_length=1, max_length=MOST_SERVED)] | None = None

    @model_validator(mode="after")
    def _lends_or_serves(self) -> HostSettings:
        if not self.lends and (self.link or self.precision != "fp32"):
            raise ValueError("a host that serves its own networks alone has no link and no precision: name processors")
        return self

    @property
    def lends(self) -> bool:
        """Whether it is sent segments, weights and all."""
        return not self.serves or self.processors is not None

    @property
    def place(self) -> tuple[str, int, bool]:
        """Host, port, and whether it is reached over TLS. Raises InputError."""
        try:
            parts = urlsplit(self.address)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in SECURE or not parts.hostname or parts.path.strip("/"):
            raise InputError(f"'{self.address}' is no address of a host: https://HOST:PORT")
        secure = SECURE[parts.scheme]
        if self.over_grpc and self.lends:
            raise InputError(f"'{self.address}' lends no processors over gRPC: https://, or serves = {{…}} alone")
        if not secure and parts.hostname not in LOOPBACK and not self.plain:
            raise InputError(
                f"'{self.address}' would be read by anybody on the way: {parts.scheme}s://, or plain = true"
            )
        return parts.hostname, port or (443 if secure else 80), secure

    @property
    def over_grpc(self) -> bool:
        """Whether it is asked over gRPC."""
        return self.address.lower().startswith("grpc")

    def context(self) -> ssl.SSLContext | None:
        """What connections are wrapped in. Raises InputError."""
        if not self.place[2]:
            return None
        try:
            return ssl.create_default_context(cafile=self.certificate)
        except OSError as error:
            raise InputError(f"the certificate in '{self.certificate}' cannot be read: {error}") from None


_FILE = TypeAdapter(Annotated[dict[HostName, HostSettings], Field(max_length=MAX_HOSTS)])


def read_hosts(file: Path) -> dict[str, HostSettings]:
    """The hosts that a file names, each a table of its own. Raises InputError."""
    try:
        found = _FILE.validate_python(tomllib.loads(file.read_text(encoding="utf-8-sig")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"the hosts in '{file}' cannot be read: {because(error)}") from None
    except ValidationError as error:
        raise InputError(f"'{file}', {next(faults(error))}") from None
    for settings in found.values():
        _ = settings.place
    return found
