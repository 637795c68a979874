"""Parameters that routes of several rooms share: pages, names and hashes."""

from typing import Annotated

from fastapi import Path, Query

from hope_schema.base import FREQUENCY, LABEL, MAX_LABEL, Digest
from hope_schema.registry import PLAIN

DeviceId = Annotated[str, Path(max_length=MAX_LABEL, pattern=LABEL, description="The device's id")]
SocName = Annotated[str, Path(max_length=MAX_LABEL, pattern=LABEL, description="The SoC")]
FrequencyName = Annotated[str, Path(max_length=MAX_LABEL, pattern=FREQUENCY, description="The operating point")]
ModelHash = Annotated[Digest, Path(description="SHA-256 of the graph, in hexadecimal")]
PlainName = Annotated[str, Path(max_length=100, pattern=PLAIN)]
After = Annotated[str | None, Query(max_length=128, pattern=LABEL, description="`next` of the page before")]
AfterName = Annotated[str | None, Query(max_length=100, pattern=PLAIN, description="`next` of the page before")]
Offset = Annotated[int, Query(ge=0, le=10_000_000, description="`next` of the page before")]
Limit = Annotated[int, Query(ge=1, le=1000, description="Rows per page")]
FewRows = Annotated[int, Query(ge=1, le=100, description="Rows per page")]
