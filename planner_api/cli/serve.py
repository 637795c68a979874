"""Running the application under uvicorn: one process, told where it listens, stopped without dropping answers."""

import errno
import gc
import os
import resource
import socket
import ssl
import sys
from pathlib import Path
from typing import Any, cast

import uvicorn

from planner_api.app import create_app
from planner_api.db.engine import shown
from planner_api.errors import UsageError
from planner_api.service import Service
from planner_api.settings import Settings
from planner_api.web.application import App
from planner_api.web.connections import RESERVED_FILES, Connections, open_files
from planner_api.web.logs import configure
from planner_api.web.prefix import ProxyHeaders
from planner_api.web.protocol import BoundedProtocol

BACKLOG = 4096


Tls = tuple[Path, Path]
"""Files in PEM: a certificate with what it is signed by, and its key."""


class Server(uvicorn.Server):
    """Uvicorn's server that says, once it listens, where, on which database, and who may call."""

    def __init__(self, config: uvicorn.Config, planner: Service) -> None:
        super().__init__(config)
        self._planner = planner

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then print one line on stderr that a person or a script can wait for."""
        await super().startup(sockets)
        if self.started:
            # What was loaded by now lives as long as the process; the collector need not walk through it again, and
            # a request leaves few cycles behind.
            gc.collect()
            gc.freeze()
            gc.set_threshold(20_000, 20, 50)
            for server in self.servers:
                for bound in server.sockets:
                    host, port = bound.getsockname()[:2]
                    shown = f"[{host}]" if ":" in host else host
                    scheme = "https" if self.config.is_ssl else "http"
                    address = f"{scheme}://{shown}:{port}"
                    print(f"hope-planner listens on {address}", file=sys.stderr, flush=True)
                    if self._planner.settings.console:
                        print(f"hope-planner shows the fleet at {address}/console", file=sys.stderr, flush=True)
            print(f"hope-planner works on {_works_on(self._planner)}", file=sys.stderr, flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what waits for a better plan with what there is, then let every request finish."""
        self._planner.news.end_waits()
        await super().shutdown(sockets)


def _works_on(planner: Service) -> str:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    access = "every call needs a token" if planner.settings.tokens_required else "open to this machine, no tokens"
    return f"{shown(planner.database.url)}; {access}; up to {most} open files"


def build_config(app: App[Service], host: str, port: int, tls: Tls | None = None) -> uvicorn.Config:
    settings = app.planner.settings
    proxied = ProxyHeaders(cast(Any, app), os.environ.get("FORWARDED_ALLOW_IPS", ""))
    most = max(RESERVED_FILES, open_files() - RESERVED_FILES)
    connections = Connections(most, settings.connections_per_address, cast(Any, proxied.trusted_hosts))
    bounds = {"body_timeout_s": settings.body_timeout_s, "held": connections}
    return uvicorn.Config(
        proxied,
        host=host,
        port=port,
        loop="uvloop",
        http=type("Protocol", (BoundedProtocol,), bounds),
        ws="none",
        proxy_headers=False,
        access_log=False,
        server_header=False,
        log_config=None,  # ours, which `configure` set
        log_level="error",  # it warns of each malformed request, and twice of each wish for another protocol
        backlog=BACKLOG,
        timeout_graceful_shutdown=max(1, round(settings.grace_s)),
        lifespan="on",
        ssl_certfile=tls[0] if tls else None,
        ssl_keyfile=tls[1] if tls else None,
    )


def serve(settings: Settings, host: str, port: int, tls: Tls | None = None) -> int:
    """Serve until a signal asks to stop; return the exit status.

    Raises:
        UsageError: the address is taken or not of this machine, or the files of TLS are not what they should be.
    """
    if tls:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*tls)
        except (OSError, ssl.SSLError) as error:  # NOTE: a pass phrase is asked for on the terminal, as OpenSSL does
            raise UsageError(f"{tls[0]} and {tls[1]} are no certificate with its key: {error}") from None
    _check_address(host, port)
    configure(settings)
    app = create_app(settings)
    server = Server(build_config(app, host, port, tls), app.planner)
    server.run()
    return 0 if server.started else 1


def _check_address(host: str, port: int) -> None:
    """Bind and let go: uvicorn itself would say so after the planner has started, in a line of its log."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, port))
    except OSError as error:
        cure = "; choose another with --port" if error.errno == errno.EADDRINUSE else ""
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror or error}{cure}") from None
