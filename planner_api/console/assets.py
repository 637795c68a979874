"""Style and scripts: read once, compressed once, under names that change with what they hold."""

from __future__ import annotations

import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from planner_api.compression import gzipped
from planner_api.errors import NotFoundError
from planner_api.plans.stored import choose_coding

PREFIX = "/console/static/"
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FOR_EVER = "public, max-age=31536000, immutable"


class Assets:
    """The files of a folder. A name holds a hash of the content, so browsers may keep it for ever."""

    def __init__(self, folder: Path) -> None:
        self._names: dict[str, str] = {}
        self._files: dict[str, tuple[str, bytes, bytes]] = {}
        for path in sorted(folder.iterdir()):
            if path.suffix in MEDIA_TYPES:
                body = path.read_bytes()
                name = f"{path.stem}.{hashlib.sha256(body).hexdigest()[:12]}{path.suffix}"
                self._names[path.name] = name
                self._files[name] = (MEDIA_TYPES[path.suffix], body, gzipped(body))

    def url(self, name: str) -> str:
        """Where a file is to be had. Raises KeyError for one that is not there."""
        return PREFIX + self._names[name]

    def answer(self, request: Request, name: str) -> Response:
        """Return a file. Raises NotFoundError for a name that is none, such as that of an older version."""
        if name not in self._files:
            raise NotFoundError("not-found", "There is no such file.")
        media_type, body, compressed = self._files[name]
        headers = {"Cache-Control": FOR_EVER, "Vary": "Accept-Encoding"}
        if takes_gzip(request):
            body, headers["Content-Encoding"] = compressed, "gzip"
        return Response(body, media_type=media_type, headers=headers)


def takes_gzip(request: Request) -> bool:
    """Whether a browser reads gzip."""
    return choose_coding(request.headers.get("accept-encoding", "").encode("latin-1"), ("gzip",)) == "gzip"
