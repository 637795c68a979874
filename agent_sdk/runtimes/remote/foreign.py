"""A server of the protocol that takes files of networks, such as a Triton with explicit control of its models.

Segments go there as to our own hosts: by the model-repository extension, under the digest of their file. It has none of
what our own hosts add to the protocol, so

- it is described by its name and address, and computes with the backend that it calls ``onnxruntime``;
- the way there is measured by a network of two ops, which is also how it shows that it takes files;
- how long ops take is what its statistics say;
- nothing stays there between segments, and no run says when it was computed;
- what an agent leaves there that is killed is known by its name, and unloaded by another.
"""

import logging
import re
import time
import uuid
from contextlib import closing
from typing import Annotated, Any, ClassVar, Final
from urllib.parse import quote

from onnx import parser
from pydantic import BaseModel, Field, RootModel, ValidationError
from typing_extensions import override

from agent_sdk.errors import OutOfMemory, ProcessorError, ProcessorLost, UnsupportedOp
from agent_sdk.machine.columns import latency_columns
from agent_sdk.machine.timing import MIN_REPEATS, Timing, summarise
from agent_sdk.model import Model
from agent_sdk.protocol.extensions import LENDS
from agent_sdk.runtimes.alone import bound
from agent_sdk.runtimes.base import Segment, segment_of
from agent_sdk.runtimes.remote.clock import Interval
from agent_sdk.runtimes.remote.host import RemoteHost
from agent_sdk.runtimes.remote.peer import About, AbsentError, HttpPeer
from agent_sdk.runtimes.remote.processor import BACKEND, RemoteProcessor
from agent_sdk.runtimes.remote.settings import HostSettings
from hope_schema import HOST, Missing, Observations, Offer, merge
from hope_schema import Processor as ProcessorSpec
from hope_schema.base import MAX_FIGURE_US, MAX_LABEL

log = logging.getLogger(__name__)

SENT: Final = re.compile(r"hope-(\d{1,9})-[0-9a-f]{64}\.\w+")
"""What networks are called there that agents have sent: the day, counted from 1970, and the digest."""
DAY_S: Final = 86_400
NEEDED: Final = ("model_repository", "statistics")
"""The extensions without which a server is sent nothing."""
ECHO: Final = parser.parse_model("""
<ir_version: 8, opset_import: ["" : 13]>
echo (uint8[given] x, int64[1] wanted) => (uint8[made] y) {
    begin = Constant <value = int64[1] {0}> ()
    end = Constant <value = int64[1] {1}> ()
    first = Slice (x, begin, end)
    y = Expand (first, wanted)
}""")
"""Takes any number of bytes, and gives as many as are wanted; one at least, either way."""


_Counter = Annotated[int, Field(ge=0, lt=2**64)]


class _Loaded(BaseModel):
    name: str


class _Index(RootModel[tuple[_Loaded, ...]]):
    """What is loaded there."""


class _Spent(BaseModel):
    count: _Counter
    ns: _Counter


class _Inferences(BaseModel):
    compute_infer: _Spent


class _Model(BaseModel):
    inference_stats: _Inferences


class _Statistics(BaseModel):
    model_stats: tuple[_Model]


def host_at(name: str, settings: HostSettings) -> RemoteHost:
    """A host that computes segments: one of ours, or another server that takes files.

    Raises ProcessorLost where it cannot be reached, or takes none; InputError for settings that are none.
    """
    peer = HttpPeer(name, settings)
    with closing(peer):
        about = peer.known()
    return RemoteHost(name, settings) if LENDS in about.extensions else ForeignHost(name, settings, about)


def _today() -> int:
    return int(time.time() // DAY_S)


class ForeignHost(RemoteHost):
    """A server that takes files; may be used from any number of threads.

    Args:
        about: what it says of itself.
    """

    keeps = False
    refusals: ClassVar = {**HttpPeer.refusals, 500: UnsupportedOp}
    """With 500, Triton says that it cannot load a file."""
    _probe = ""

    def __init__(self, name: str, settings: HostSettings, about: About) -> None:
        self._about = about
        try:
            super().__init__(name, settings)
        except ProcessorError:
            self.close()
            raise

    @override
    def _offered(self) -> Offer:
        about = self._about
        what = f"host '{self.name}' ({about.name} {about.version}) takes no files, so that no segment can go there"
        if lacking := [one for one in NEEDED if one not in about.extensions]:
            raise ProcessorLost(f"{what}: it has no extension {' and no '.join(lacking)}")
        self._unload_left()
        try:
            self._probe = self.send(ECHO, BACKEND)
        except (UnsupportedOp, OutOfMemory, AbsentError) as error:
            raise ProcessorLost(f"{what}: {error}") from None
        soc = f"{about.name}@{self.shown}".translate({ord("["): None, ord("]"): None})
        try:
            one = ProcessorSpec(
                id=BACKEND,
                runtime=BACKEND,
                version=f"{about.name}-{about.version}"[:MAX_LABEL],
                threads=1,
                core_class="server",
                resources=(BACKEND,),
                place=HOST,
            )
            return Offer(soc=soc[:MAX_LABEL], frequency="any", processors=(one,))
        except ValidationError as error:  # an address with a zone, or a name that ends in a slash once it is cut
            why = error.errors()[0]["msg"]
            raise ProcessorLost(f"host '{self.name}' cannot be described by its name and address: {why}") from None

    @override
    def _called(self, file: bytes, processor: str) -> str:
        return f"hope-{_today()}-{super()._called(file, processor)}"

    def _unload_left(self) -> None:
        """Unload what was sent before yesterday: agents that were killed left it. Who still uses it sends it again."""
        try:
            said = self.say("POST", "/v2/repository/index", b'{"ready": true}')
            loaded = self.valid(_Index, said, "what is loaded there").root
        except ProcessorError as error:
            log.info("what other agents have left there stays: %s", error)
            return
        for one in loaded:
            sent = SENT.fullmatch(one.name)
            if sent and int(sent[1]) < _today() - 1:
                self._unload(one.name)

    @override
    def learn(self, timing: str, sent: int, received: int, asked: Interval) -> None:
        """Nothing: how much of a run's time the way took is not said."""

    @override
    def _round_trip(self, sent: int, received: int, times: int = 3) -> float:
        try:
            return super()._round_trip(sent, received, times)
        except AbsentError:  # it was started anew
            self.send_again(self._probe, ECHO)
            return super()._round_trip(sent, received, times)

    @override
    def _echo(self, sent: int, received: int) -> list[bytes]:
        x, wanted = bytes(max(sent, 1)), max(received, 1).to_bytes(8, "little")
        inputs: list[dict[str, Any]] = [
            {"name": name, "datatype": kind, "shape": [size], "parameters": {"binary_data_size": len(data)}}
            for name, kind, size, data in (("x", "UINT8", len(x), x), ("wanted", "INT64", 1, wanted))
        ]
        outputs = [{"name": "y", "parameters": {"binary_data": True}}]
        said = {"inputs": inputs, "outputs": outputs}
        return [self.run_request(self._probe, said, len(x) + len(wanted)), x, wanted]

    @override
    def measure(self, model: Model, missing: Missing, budget_s: float) -> Observations:
        """Run missing ops there one by one, and take what its statistics say. Raises ProcessorError.

        What there was no time for is absent, and what it refuses unsupported.
        """
        until, (one,) = time.monotonic() + budget_s, self.offer.processors
        wanted = {row.signature for row in missing.latencies if row.kind == one.kind}
        segments = {each.signature: segment_of(each, model) for each in merge(model.graph) if each.signature in wanted}
        processor = RemoteProcessor(self, one, frozenset())
        found: dict[tuple[str, str], Timing | None] = {}
        for signature, segment in segments.items():
            if time.monotonic() >= until:
                break
            try:
                found[signature, one.kind] = self._timed(processor, segment)
            except UnsupportedOp:
                found[signature, one.kind] = None
        return Observations(
            soc=self.offer.soc,
            frequency=self.offer.frequency,
            processors=(one,),
            latencies=latency_columns(found),
            device_id=self.name,
            upload_id=f"profile-{uuid.uuid4().hex}",
        )

    def _timed(self, processor: RemoteProcessor, segment: Segment) -> Timing:
        samples = []
        with closing(processor.compile(segment)) as executable:
            call = bound(executable)
            call()
            before = self._spent(executable.compiled)
            for _ in range(MIN_REPEATS):
                call()
                after = self._spent(executable.compiled)
                if after.count > before.count:  # a run may count a little later than it is answered
                    samples.append((after.ns - before.ns) / (after.count - before.count) / 1e3)
                    before = after
        if not samples or not 0.0 < min(samples) <= max(samples) <= MAX_FIGURE_US:
            raise ProcessorLost(f"host '{self.name}' does not say in its statistics what runs took")
        return summarise(samples)

    def _spent(self, name: str) -> _Spent:
        """What computing a network took there so far. Raises ProcessorError, but never that an op is unsupported."""
        try:
            said = self.say("GET", f"/v2/models/{quote(name)}/stats")
        except UnsupportedOp as error:
            raise ProcessorLost(str(error)) from None
        (one,) = self.valid(_Statistics, said, "runs of a model").model_stats
        return one.inference_stats.compute_infer

    @override
    def close(self) -> None:
        probe, self._probe = self._probe, ""
        if probe:
            self.forget(probe)
        super().close()
