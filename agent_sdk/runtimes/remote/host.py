"""A host that lends its processors: what it offers, the networks that were sent there, and runs of them."""

import base64
import hashlib
import json
import logging
import re
import secrets
import statistics
import threading
import time
from collections import Counter
from collections.abc import Collection
from typing import ClassVar, Final
from urllib.parse import quote

import onnx
from typing_extensions import override

from agent_sdk.errors import OutOfMemory, ProcessorError, ProcessorLost
from agent_sdk.model import Model, extract
from agent_sdk.model.source import expected_bytes
from agent_sdk.runtimes.remote.clock import Clock, Interval
from agent_sdk.runtimes.remote.halved import change_us_per_byte
from agent_sdk.runtimes.remote.line import request
from agent_sdk.runtimes.remote.link import Way
from agent_sdk.runtimes.remote.peer import CONNECT_S, HttpPeer
from agent_sdk.runtimes.remote.settings import HostSettings
from hope_schema import Missing, Observations, Offer

log = logging.getLogger(__name__)

LOAD_S: Final = 20.0
"""Longest time that a network may take to be made ready there, beside what its bytes take."""
SLOWEST: Final = 64 * 1024
"""Bytes a second that a link has at least."""
MOST_FILE: Final = 2**31 - 1
"""Most bytes of a network's file: protobuf has no longer messages."""
_CONFIGURED: Final = {"FLOAT": "FP32", "FLOAT16": "FP16", "DOUBLE": "FP64", "BFLOAT16": "BF16"}
"""Types of tensors whose names in a model's configuration are not ONNX's."""
PROBE_BYTES: Final = 256 * 1024
PROBES: Final = 3
LOOK_BYTES: Final = 64 * 1024
LOOKED: Final = 0.5
"""Part of the estimate of a link that looking at it has."""
_RAN: Final = re.compile(r"\brun;dur=(\d{1,9}(?:\.\d{1,6})?)(?:;at=(\d{1,15}(?:\.\d{1,6})?))?(?=[;,]|$)")
"""How long a run took there and, where the host says it, when it began by its own clock; milliseconds."""


def file_of(network: onnx.ModelProto) -> bytes:
    """A network as it is sent. Raises OutOfMemory for one that is too large, without trying to write it down."""
    size = sum(map(expected_bytes, network.graph.initializer))
    if size > MOST_FILE:
        raise OutOfMemory(f"a network of {size} bytes is too large to be sent to another host")
    return network.SerializeToString(deterministic=True)


def config_of(network: onnx.ModelProto, backend: str) -> str:
    """What a network's file is loaded with: the model-configuration extension, in JSON.

    ``backend`` is what computes it there; sizes that are open are -1.
    """

    def described(port: onnx.ValueInfoProto) -> dict[str, object]:
        kind = port.type.tensor_type
        name = onnx.TensorProto.DataType.Name(kind.elem_type)
        dims = [size.dim_value if size.HasField("dim_value") else -1 for size in kind.shape.dim]
        return {"name": port.name, "data_type": f"TYPE_{_CONFIGURED.get(name, name)}", "dims": dims}

    ends = {"input": network.graph.input, "output": network.graph.output}
    told = {end: [described(port) for port in ports] for end, ports in ends.items()}
    return json.dumps({"backend": backend, "max_batch_size": 0, **told})


class RemoteHost(HttpPeer):
    """A host that lends processors; may be used from any number of threads.

    Args:
        name: what it is called here.
        settings: where it is, and what it serves us for.

    Attributes:
        here: what the names of tensors of ours begin with that stand there.
        as_float16: what it takes here per byte to let float32 cross as float16; None: it may not.
        clock: the host's, seen from here.
        keeps: whether tensors can be sent there ahead, and stay there for later segments.
        offer: what it lends.
        way: the way there.

    Raises ProcessorLost where it cannot be reached or does not offer anything, InputError for settings that are none.
    """

    keeps: ClassVar[bool] = True

    def __init__(self, name: str, settings: HostSettings) -> None:
        super().__init__(name, settings)
        self.here = secrets.token_hex(16)
        self.as_float16 = change_us_per_byte() if settings.precision == "fp16" else None
        self.clock = Clock()
        self._link = settings.link
        self._crossed = False
        self._sending = threading.Lock()
        self._sent: dict[str, int] = {}
        self._holding = threading.Lock()
        self._held: Counter[str] = Counter()
        offer = self._offered()
        wanted = settings.processors
        lent = tuple(one for one in offer.processors if wanted is None or one.id in wanted)
        if not lent:
            offered = ", ".join(one.id for one in offer.processors)
            raise ProcessorLost(f"host '{name}' lends none of {', '.join(wanted or ())}, but {offered}")
        self.offer = offer.model_copy(update={"processors": lent})
        self.way = self.measured_way()

    def _offered(self) -> Offer:
        """What the host has to lend. Raises ProcessorLost."""
        return self.valid(Offer, self.say("GET", "/v2/hope"), "what it lends")

    @override
    def learn(self, timing: str, sent: int, received: int, asked: Interval) -> Interval | None:
        """Take in when a run began and ended there, as it says, and thereby how long the way took."""
        took_s = asked[1] - asked[0]
        ran_s, placed = self._ran(timing, asked)
        self.way.learn(sent, received, (took_s - min(ran_s, took_s)) * 1e6)
        self._crossed = True
        return placed

    def _ran(self, timing: str, asked: Interval) -> tuple[float, Interval | None]:
        """Seconds that the host says it computed, and when that was by this machine's clock, where it says that."""
        said = _RAN.search(timing)
        if said is None:
            return 0.0, None
        ran_s = float(said[1]) / 1e3
        if said[2] is None:
            return ran_s, None
        began = float(said[2]) / 1e3
        return ran_s, self.clock.placed(asked, (began, began + ran_s))

    def look(self) -> None:
        """See whether it answers, and how fast, unless runs have shown that since the last look. Never raises.

        Next to nothing is sent in any case: what spends the least time on the way says the most of the host's clock.
        """
        crossed, self._crossed = self._crossed, False
        if self.closed:
            return
        try:
            for sent, received in ((0, 1),) if crossed else ((0, 1), (LOOK_BYTES, 1), (0, LOOK_BYTES)):
                self.way.learn(sent, received, self._round_trip(sent, received, 1), LOOKED)
        except ProcessorError as error:
            log.info("%s", error)

    # Networks

    def send(self, network: onnx.ModelProto, processor: str) -> str:
        """Send a network, unless it is there, and return its name; ``forget`` says that it is not needed any more.

        Raises OutOfMemory where the host is full, UnsupportedOp where it refuses the network, ProcessorLost.
        """
        file = file_of(network)
        name = self._called(file, processor)
        with self._sending:
            if name not in self._sent:
                self._load(name, file, config_of(network, processor))
            self._sent[name] = self._sent.get(name, 0) + 1
        return name

    def _called(self, file: bytes, processor: str) -> str:
        """What a network is called there; what stands behind the point computes it."""
        return f"{hashlib.sha256(file).hexdigest()}.{processor}"

    def send_again(self, name: str, network: onnx.ModelProto) -> None:
        """Send a network that the host has no more: it was started anew, or needed the room. Raises like ``send``."""
        with self._sending:
            self._load(name, file_of(network), config_of(network, name.partition(".")[2]))

    def _load(self, name: str, file: bytes, config: str) -> None:
        """Load a file as the model-repository extension has it: it stands in the request, beside its configuration."""
        told = b'{"parameters": {"config": %s, "file:1/model.onnx": "' % json.dumps(config).encode()
        body = b"".join((told, base64.b64encode(file), b'"}}'))
        self.say("POST", f"/v2/repository/models/{quote(name)}/load", body, LOAD_S + len(body) / SLOWEST)

    def forget(self, name: str) -> None:
        """Let a network go that was sent, once for each time that it was. Never raises."""
        with self._sending:
            self._sent[name] = self._sent.get(name, 1) - 1
            if self._sent[name] > 0:
                return
            del self._sent[name]
        self._unload(name)

    def _unload(self, name: str) -> None:
        try:
            self.say("POST", f"/v2/repository/models/{quote(name)}/unload")
        except ProcessorError as error:
            log.info("a network stays on host '%s': %s", self.name, error)

    def hold(self, tensors: Collection[str]) -> None:
        """Count one more user of tensors that will stand there. Never raises."""
        with self._holding:  # not while those of these names are let go
            self._held.update(tensors)

    def drop(self, tensors: Collection[str]) -> None:
        """Count one user less of tensors, and let those go that have none. Never raises.

        NOTE: who is freed late names buffers that others may have been given meanwhile.
        """
        with self._holding:
            self._held.subtract(tensors)
            unused = [name for name in tensors if self._held[name] <= 0]
            for name in unused:
                del self._held[name]
            if not unused or self.closed:
                return  # with its connections they go as well
            try:
                self.say("POST", "/v2/hope/tensors/drop", json.dumps({"names": unused}).encode())
            except ProcessorError as error:
                log.info("tensors stay on host '%s': %s", self.name, error)

    def measure(self, model: Model, missing: Missing, budget_s: float) -> Observations:
        """Have it measure what is missing of a network. Raises ProcessorError."""
        body = json.dumps({"missing": missing.model_dump(mode="json"), "budget_s": budget_s}).encode()
        graph = model.graph
        name = self.send(extract(model, graph.op, graph.inputs, graph.outputs), self.offer.processors[0].id)
        try:
            said = self.say("POST", f"/v2/hope/models/{quote(name)}/measure", body, LOAD_S + 2 * budget_s)
        finally:
            self.forget(name)
        return self.valid(Observations, said, "what it measured")

    # The way there

    def measured_way(self) -> Way:
        """What the way there takes now. Raises ProcessorLost."""
        small = self._round_trip(0, 1)
        there = max(self._round_trip(PROBE_BYTES, 1) - small, 0.0) / PROBE_BYTES
        back = max(self._round_trip(0, PROBE_BYTES) - small, 0.0) / PROBE_BYTES
        return Way(self.name, small, there, back, self.as_float16, self._link)

    def _round_trip(self, sent: int, received: int, times: int = PROBES) -> float:
        """Microseconds that so many bytes there and back take, in the middle of some."""
        into, parts = memoryview(bytearray(received)), self._echo(sent, received)
        took = []
        for _ in range(times):
            began = time.perf_counter()
            timing, _ = self.ask(parts, [into], CONNECT_S + (sent + received) / SLOWEST)
            ended = time.perf_counter()
            took.append(ended - began)
            self._ran(timing, (began, ended))
        return statistics.median(took) * 1e6

    def _echo(self, sent: int, received: int) -> list[bytes]:
        """A request that carries so many bytes, and is answered with so many."""
        head = request("POST", "/v2/hope/link", self._fields | {"x-hope-bytes": received}, sent)
        return [head, bytes(sent)]
