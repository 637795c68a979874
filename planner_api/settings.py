"""Every setting of the planner, read from the environment (``HOPE_DATABASE_URL``, ``HOPE_SOLVE_BUDGET_S``, ...)."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from hope_schema.proof import address_of

MEBIBYTE = 2**20
EMBEDDED_WAIT_S = 600.0
"""Longest wait for an embedded planner, whose one caller wants its answer by the newest figures and nothing else."""


class Settings(BaseSettings):
    """What an admin may change. Sizes are in bytes, times in seconds.

    ``embedded`` runs the planner inside an agent's process: it migrates its SQLite file by itself, answers with plans
    that nothing improves any more, and asks for no tokens.
    """

    model_config = SettingsConfigDict(env_prefix="HOPE_", extra="ignore")

    database_url: str = "sqlite:///hope-planner.sqlite"
    embedded: bool = False
    tokens_required: bool = False
    """Whether every call needs a bearer token; ``serve`` sets it for every address but loopback."""
    addresses: Annotated[frozenset[str], NoDecode] = frozenset()
    """Where devices call this planner and nobody else, separated by commas (``https://planner.example``). There it
    proves to a device that it gave the device its token; nowhere, by default."""

    max_body_bytes: int = Field(8 * MEBIBYTE, ge=1024)
    """Largest request body as it is sent."""
    max_inflated_bytes: int = Field(16 * MEBIBYTE, ge=1024)
    """Largest request body after decompression. Exporters write some 200 bytes per op, 4 MiB for as many as the
    contract allows; what those hold up is the number of ops, not of bytes."""
    body_timeout_s: float = Field(30.0, gt=0)
    """Longest time a client may take to send its body."""
    read_timeout_s: float = Field(10.0, gt=0, le=600)
    """Most processor time a large body may take to be read, in a process of its own."""
    read_memory_bytes: int = Field(192 * MEBIBYTE, ge=64 * MEBIBYTE)
    """Memory a large body may take while it is read."""
    plan_cache_bytes: int = Field(256 * MEBIBYTE, ge=0)
    """Memory for the plans served from this process."""

    solve_budget_s: float = Field(5.0, gt=0, le=3600)
    """Time one solve may take."""
    provisional_budget_s: float = Field(0.5, gt=0, le=60)
    """Time the first plan of a key may take, while its device waits."""
    first_wait_s: float = Field(10.0, ge=0, le=300)
    """How long a request waits for the first plan of its key, if it does not prefer to wait longer."""
    max_wait_s: float = Field(30.0, ge=0, le=300)
    """Longest wait a ``Prefer: wait=N`` is granted."""
    replan_threshold: float = Field(0.10, gt=0)
    """A plan is solved again when a figure it rests on moved by more than this fraction, or was missing then."""
    fold_interval_s: float = Field(1.0, ge=0)
    """How long an upload waits for others to be folded together with; a plan that needs it has it folded at once."""
    assignment_s: float = Field(600.0, gt=0)
    """How long a device has to measure what it was asked for, before another one is asked."""
    rate_per_token: float = Field(200.0, ge=0)
    """Requests per second one token may make (0: no limit)."""
    burst_per_token: int = Field(400, ge=1)
    rate_per_address: float = Field(50.0, ge=0)
    """Requests per second one address may make without a valid token (0: no limit)."""
    burst_per_address: int = Field(500, ge=1)
    connections_per_address: int = Field(256, ge=0)
    """Connections one address may hold at once (0: no limit); a proxy that is trusted may hold any number."""
    rate_per_claim: float = Field(1.0, ge=0)
    """Devices per second that may enrol with one claim (0: no limit)."""
    burst_per_claim: int = Field(100, ge=1)
    pool_size: int = Field(10, ge=1, le=200)
    """PostgreSQL connections per process to read, and as many to write; a few more for jobs, news and uploads."""

    models_per_day: int = Field(200, ge=0)
    """New models one device may register a day; these quotas bind devices' tokens only."""
    model_bytes_per_day: int = Field(64 * MEBIBYTE, ge=0)
    """Bytes of new models, as they are stored, that one device may register a day."""
    upload_bytes_per_day: int = Field(512 * MEBIBYTE, ge=0)
    """Bytes one device may upload to one process a day, as they are sent."""
    plan_keys_per_day: int = Field(500, ge=0)
    """Plans nobody asked for before that one device may ask for a day."""
    queued_solves: int = Field(100, ge=1)
    """Plans one device asked for that may wait to be solved."""
    profiles_per_device: int = Field(16, ge=1)
    """Pairs of SoC and frequency one device may upload for."""
    figures_per_device: int = Field(50_000, ge=1)
    """Latencies, and transfers, of a profile that one device may say alone."""
    confirmations: int = Field(200, ge=0)
    """Figures that others said already which a device is asked to measure too, per question."""

    console: bool = True
    """Whether the console answers at ``/console``."""
    root_path: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._~\-]+)*$", max_length=512)] = ""
    """The path prefix under which a proxy shows this planner, e.g. ``/hope``; a trusted proxy may send it as
    ``X-Forwarded-Prefix`` instead."""
    console_session_s: float = Field(43_200.0, ge=60, le=30 * 86_400)
    """After this a console session ends, and its token is asked for again."""
    oidc_issuer: str | None = Field(None, max_length=2048, pattern=r"^https?://[^\s?#]+$")
    """The OpenID Connect provider that people may sign in to the console with; null: tokens alone."""
    oidc_client_id: str | None = Field(None, min_length=1, max_length=256)
    """What the provider calls this planner; its redirect address is ``/console/oidc/callback``."""
    oidc_client_secret: SecretStr | None = None
    """Null for a public client, which PKCE protects by itself."""
    oidc_scopes: str = Field("openid profile email", max_length=1000, pattern=r"^openid( |$)")
    """What is asked of the provider, separated by blanks."""
    oidc_role_claim: str = Field("roles", min_length=1, max_length=256)
    """The claim of the ID token that decides who may come in, or the way to it: ``realm_access.roles``."""
    oidc_admins: str = "hope-admin"
    """Values of that claim that may do everything, separated by commas; ``*``: any."""
    oidc_viewers: str = "hope-viewer"
    """Values of that claim that may look, separated by commas; ``*``: any."""
    oidc_name_claim: str = Field("sub", min_length=1, max_length=256)
    """The claim that people are known by in the audit log; one that nobody can choose for themselves."""

    worker_in_process: bool | None = None
    """Whether ``serve`` brings a worker; null: yes on SQLite, no on PostgreSQL (there ``hope-planner worker`` does)."""
    worker_slots: int = Field(1, ge=1, le=64)
    """Solves at once per worker process; beside them it has a child for what is quick."""
    solve_timeout_s: float = Field(60.0, gt=0, le=7200)
    """After this a solver process is killed, but never sooner than 5 s after its budget."""
    solve_memory_bytes: int = Field(4096 * MEBIBYTE, ge=0)
    """Memory one solve may add to what its libraries hold; 0: no limit."""
    lease_s: float = Field(6.0, ge=0.5, le=600)
    """How long the work of a machine that vanished waits before another worker takes it."""
    grace_s: float = Field(20.0, ge=0, le=600)
    """How long running solves and requests may go on after SIGTERM before solves are handed back."""

    audit_days: int = Field(730, ge=1, le=36_500)
    """How long entries of the audit log are kept."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"
    telemetry: bool = False
    """Whether to trace with OpenTelemetry, if that is installed."""
    metrics: bool = True
    """Whether ``GET /metrics`` answers; it needs no token, so keep it from outside (the chart's ingress does)."""

    @field_validator("addresses", mode="before")
    @classmethod
    def _addresses_are_safe(cls, given: str | frozenset[str]) -> frozenset[str]:
        parts = given.split(",") if isinstance(given, str) else given
        addresses = frozenset(address_of(part.strip()) for part in parts if part.strip())
        if exposed := sorted(address for address in addresses if not is_private(address)):
            raise ValueError(f"{exposed[0]} must begin with https://, for who is proven there is sent a token")
        return addresses

    @model_validator(mode="after")
    def _provider_is_complete(self) -> Settings:
        if self.oidc_issuer is not None:
            if self.oidc_client_id is None:
                raise ValueError("HOPE_OIDC_ISSUER takes HOPE_OIDC_CLIENT_ID too: what the provider calls this planner")
            if not is_private(self.oidc_issuer):
                raise ValueError("HOPE_OIDC_ISSUER must begin with https://, for what it says opens the console")
        return self


@lru_cache(1024)
def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone; an open planner asks it twice of each request."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_private(url: str) -> bool:
    """Whether nobody can listen in on what goes to an address: TLS, or this machine alone."""
    return url.startswith("https://") or (url.startswith("http://") and is_loopback(urlsplit(url).hostname or ""))


_OTHERS = re.compile(
    r"HOPE_(CACHE_DIR|CAMPAIGN|CLAIM|DEBUG|LANES|MLSERVER|ADMIN_TOKEN|PLANNER_URL|SOAK_S|TOKEN|TRITON|ZOO"
    r"|(.*_)?SERVICE_(HOST|PORT.*)|(.*_)?PORT(_\d+_.*)?)"
)
"""What begins as our settings do and belongs to the agent, the command line, the tests, or, as the addresses of
services, to Kubernetes."""


def mistyped(names: Iterable[str]) -> str | None:
    """Return one sentence on the first environment variable that looks like a setting and is none."""
    known = [f"HOPE_{name.upper()}" for name in Settings.model_fields]
    for name in sorted(map(str.upper, names)):
        if name.startswith("HOPE_") and name not in known and not _OTHERS.fullmatch(name):
            near = difflib.get_close_matches(name, known, n=1)
            return f"there is no setting {name}" + (f"; did you mean {near[0]}?" if near else "")
    return None
