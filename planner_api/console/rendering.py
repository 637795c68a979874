"""Pages as text: templates, what a name may do in them, and how figures are written for people."""

import hashlib
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response

from hope_schema.version import DISTRIBUTION
from hope_schema.wording import TITLES, count, duration, plural, reason
from planner_api.console.address import HOME, home

FOLDER = Path(__file__).parent
UNSEEN = (
    *range(0x00, 0x09), 0x0B, 0x0C, *range(0x0E, 0x20), *range(0x7F, 0xA0),
    0x061C, 0x200B, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2060, 0x2070), 0xFEFF,
)  # fmt: skip
"""Control characters, and those that turn the writing direction or are not seen: a name with them reads as another."""
VISIBLE = dict.fromkeys(UNSEEN, "\ufffd")
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
LONG = 20
"""Characters of a word that fit on every line; a longer one breaks where it does not fit on one alone."""
LONGEST = 400
"""Characters of a sentence."""
STATIC = f"{HOME}/static"
ASSETS = {
    path.name: f"/static/{path.name}?{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"
    for path in (FOLDER / "static").iterdir()
}
"""Where under the console style and scripts are; the hash makes a browser ask anew for a file that changed."""
SECTIONS = {
    "": "Fleet", "/devices": "Devices", "/groups": "Groups", "/models": "Models", "/plans": "Plans",
    "/profiles": "Profiles", "/releases": "Releases", "/queue": "Queue", "/tokens": "Tokens", "/audit": "Audit log",
}  # fmt: skip
"""What the console consists of: a path under ``/console``, and what that is called."""
WITHIN = {"/names": "/models", "/compare": "/plans"}
"""Pages that belong to a section of another name."""


def render(request: Request, template: str, *, code: int = 200, **context: Any) -> Response:
    page = _ENVIRONMENT.get_template(template).render(
        session=getattr(request.state, "session", None),
        request=request,
        home=home(request),
        planner=str(request.base_url).rstrip("/") + home(request).removesuffix(HOME),
        **context,
    )
    return Response(page, status_code=code, media_type="text/html", headers={"Cache-Control": "no-store"})


def visible(value: Any) -> Any:
    """What is printed for a value: a dash for nothing, and every character of a name where it can be seen."""
    if value is None:
        return "–"
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return value.translate(VISIBLE)


def percent(value: float | None, *, sign: bool = False, digits: int | None = None) -> str:
    """A fraction for people: ``12 %``, ``+3.4 %``."""
    if value is None:
        return "–"
    value *= 100.0
    digits = digits if digits is not None else 0 if abs(value) >= 9.95 or value == 0 else 1
    value = round(value, digits) or 0.0
    text = f"{value:{'+' if sign and value else ''}.{digits}f}".replace("-", "−")
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %"


def skew(seconds: float | None) -> str:
    """By how much a clock differs: ``+0.3 s``, ``−2 h``."""
    if seconds is None:
        return "–"
    sign = "" if abs(seconds) < 0.05 else "+" if seconds > 0 else "−"
    return f"{sign}{duration(round(abs(seconds), 1) * 1e6) if sign else '0 s'}"


def ago(moment: datetime | None) -> Markup | str:
    if moment is None:
        return "never"
    seconds = (datetime.now(UTC) - moment).total_seconds()
    text = f"in {_span(-seconds)}" if seconds < -1 else "just now" if seconds < 5 else f"{_span(seconds)} ago"
    stamp = moment.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(moment.isoformat(), stamp, text)


def clip(text: str | None, length: int = 40) -> Markup | str:
    """A long name, cut in its middle, with the whole of it behind."""
    if text is None:
        return "–"
    text = text.translate(VISIBLE)
    if len(text) <= length:
        return Markup("<bdi>{}</bdi>").format(text)
    head = (length - 1) * 2 // 3
    short = f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"
    return Markup('<bdi title="{}">{}</bdi>').format(text[:512], short)


def short(digest: str) -> Markup:
    return Markup('<code title="{}">{}</code>').format(escape(digest), digest[:10])


def command(text: str) -> Markup:
    """Something to type: it breaks between its words and never at a hyphen, where it would read as two words."""
    words = text.translate(VISIBLE).split()
    spans = (
        Markup("<span{}>{}</span>").format(Markup(' class="long"' if len(word) > LONG else ""), word) for word in words
    )
    return Markup('<code class="command">{}</code>').format(Markup(" ").join(spans))


def prose(text: str) -> Markup:
    """A sentence that may hold commands between backticks; where it is too long it ends earlier."""
    text = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
    parts = text.split("`")
    if len(parts) % 2 == 0:  # the last backtick has no partner
        parts[-2:] = ["`".join(parts[-2:])]
    shown = (command(part) if at % 2 else escape(part.translate(VISIBLE)) for at, part in enumerate(parts))
    return Markup("<bdi>{}</bdi>").format(Markup().join(shown))


def segment(name: str) -> str:
    """A name as one segment of an address, its slashes too."""
    return quote(name, safe="")


def section(request: Request) -> str:
    """The section that a page belongs to; the first one where it belongs to none."""
    first = "/".join(request.scope["path"].split("/")[2:3])
    path = WITHIN.get(f"/{first}", f"/{first}")
    return path if path in SECTIONS else ""


def _span(seconds: float) -> str:
    for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")):
        if seconds >= size:
            return f"{math.floor(seconds / size)} {unit}"
    return f"{math.floor(seconds)} s"


def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters |= {
        "duration": duration, "percent": percent, "count": count, "ago": ago, "clip": clip, "short": short,
        "plural": plural, "reason": reason, "skew": skew, "command": command, "prose": prose,
        "segment": segment,
    }  # fmt: skip
    found.globals |= {
        "assets": ASSETS,
        "agent": DISTRIBUTION,
        "causes": TITLES,
        "section": section,
        "sections": SECTIONS,
    }
    return found


_ENVIRONMENT = _environment()
