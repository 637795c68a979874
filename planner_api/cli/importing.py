"""``hope-planner profiles import``: the figures of an exported profile, as one voice among those of the devices."""

import hashlib
import json
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from hope_schema import Observations, Profile
from hope_schema.wording import plural
from planner_api.cli.asking import at_a_planner
from planner_api.cli.client import checked, open_client, send
from planner_api.cli.show import working
from planner_api.errors import UsageError

DEVICE = "admin"
"""In whose name an imported profile stands."""


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@at_a_planner
def import_profile(file: Path, planner: str, token: str | None, as_json: bool) -> int:
    """Take in the figures of an exported profile.

    Doing it again changes nothing.
    """
    text = _read(file)
    try:
        profile = Profile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        said = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
        raise UsageError(f"{file} is not a profile: {said}") from None
    shared = Profile.model_fields.keys() & Observations.model_fields.keys()
    measured: dict[str, Any] = {name: getattr(profile, name) for name in shared}
    upload_id = f"import-{hashlib.sha256(text).hexdigest()[:32]}"
    upload = Observations(**measured, device_id=DEVICE, upload_id=upload_id)
    with open_client(planner, token) as client, working(f"asking {planner}"):
        answer = send(client, "POST", "/profiles", {}, upload.model_dump(mode="json"))
        receipt = checked(client, answer, {"duplicate", "rows"})
    done = "known already" if receipt["duplicate"] else f"imported {plural(receipt['rows'], 'figure')}"
    click.echo(json.dumps(receipt) if as_json else f"{done}: SoC '{profile.soc}' at frequency '{profile.frequency}'")
    return 0


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
