"""Running the application under uvicorn: one process, told where it listens, stopped without dropping answers."""

from __future__ import annotations

import gc
import os
import socket
import sys

import uvicorn

from planner_api.app import App, create_app
from planner_api.http.protocol import BoundedProtocol
from planner_api.ops.logs import configure
from planner_api.settings import Settings

BACKLOG = 4096


class Server(uvicorn.Server):
    """Uvicorn's server that says, once it listens, where."""

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
                    print(f"hope-planner listens on http://{shown}:{port}", file=sys.stderr, flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what waits for a better plan with what there is, then let every request finish."""
        if isinstance(self.config.app, App):
            self.config.app.planner.events.end_waits()
        await super().shutdown(sockets)


def build_config(app: App, host: str, port: int) -> uvicorn.Config:
    """How the application is served; ``serve`` without running it."""
    settings = app.planner.settings
    protocol = type("Protocol", (BoundedProtocol,), {"body_timeout_s": settings.body_timeout_s})
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="uvloop",
        http=protocol,
        ws="none",
        # Believing nobody's X-Forwarded-For is also quicker than looking for one.
        proxy_headers="FORWARDED_ALLOW_IPS" in os.environ,
        access_log=False,
        server_header=False,
        log_level="warning",
        backlog=BACKLOG,
        timeout_graceful_shutdown=max(1, round(settings.grace_s)),
        lifespan="on",
    )


def serve(settings: Settings, host: str, port: int) -> int:
    """Serve until a signal asks to stop; return the exit status."""
    configure(settings)
    server = Server(build_config(create_app(settings), host, port))
    server.run()
    return 0 if server.started else 1
