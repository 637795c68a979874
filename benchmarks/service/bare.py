"""The yardstick: one Starlette route that returns bytes from memory, under uvicorn as it comes (httptools, uvloop)."""

from __future__ import annotations

import sys
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


def main(port: int, path: Path, coding: str) -> None:
    body = path.read_bytes()
    headers = {"content-encoding": coding, "etag": '"bare"'}

    async def answer(_request: Request) -> Response:
        return Response(body, headers=headers, media_type="application/json")

    app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])
    uvicorn.run(
        app, host="127.0.0.1", port=port, loop="uvloop", http="httptools", access_log=False, server_header=False,
        log_level="warning", lifespan="off",
    )  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
