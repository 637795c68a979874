"""What is stored of an upload beside the upload itself. Pure, so that a large one can be read in another process."""

import msgspec

import planner_api.models.reading  # noqa: F401 - one child reads both
from hope_schema import Observations
from planner_api.web.shape import parse


class UploadHead(msgspec.Struct, frozen=True):
    """Whose figures they are, of what, and how many."""

    device_id: str
    upload_id: str
    soc: str
    frequency: str
    rows: int


def read_upload(text: bytes | bytearray) -> UploadHead:
    """Validate an upload. Raises HttpError as ``parse`` does."""
    sent = parse(text, Observations)
    rows = len(sent.latencies.us) + len(sent.transfers.us)
    return UploadHead(sent.device_id, sent.upload_id, sent.soc, sent.frequency, rows)
