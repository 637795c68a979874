"""The runtimes as their own users run several networks: sessions side by side, each stream's runs in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from agent_sdk.model import Content, located
from agent_sdk.scheduling.mixes import Mix, Stream
from agent_sdk.scheduling.playing import Asks

Feed = Mapping[str, np.ndarray]
Run = Callable[[Feed], object]


def model_bytes(model: str) -> bytes:
    """A network's file."""
    with Content(located(model, 0)).opened() as found:
        return found.file if isinstance(found.file, bytes) else Path(found.file).read_bytes()


def onnxruntime(model: str, threads: int = 0, *, spin: bool = True, shared: bool = False) -> Run:
    """A session by default, or with so many threads, that spin between runs or not; ``shared``: on the global pool."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.use_per_session_threads = not shared
    if not spin:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(model_bytes(model), options, providers=["CPUExecutionProvider"])
    return lambda feed: session.run(None, dict(feed))


def drawn(model: str) -> Feed:
    """Random float32 inputs of a network, of size 1 where the file leaves one open."""
    session, draw = (
        ort.InferenceSession(model_bytes(model), providers=["CPUExecutionProvider"]),
        np.random.default_rng(0),
    )
    shapes = {port.name: [size if isinstance(size, int) else 1 for size in port.shape] for port in session.get_inputs()}
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def openvino(model: str) -> tuple[Run, int]:
    """OpenVINO's throughput mode, and how many runs it wants under way."""
    from agent_sdk.runtimes.openvino.processor import runtime

    core = runtime()
    config = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(model_bytes(model)), "CPU", config)
    wanted = int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
    free = [compiled.create_infer_request() for _ in range(wanted)]

    def run(feed: Feed) -> object:
        request = free.pop()
        try:
            request.infer(dict(feed), share_inputs=True)
            return [np.array(tensor.data) for tensor in request.output_tensors]
        finally:
            free.append(request)

    return run, wanted


def configurations(cores: int, networks: int) -> dict[str, Callable[[str], tuple[Run, int]]]:
    """By name what makes a network's run, and how many of one stream may be under way; ``pooled.py`` has one more."""
    share = max(cores // networks, 1)
    found: dict[str, Callable[[str], tuple[Run, int]]] = {
        "ort": lambda model: (onnxruntime(model), 1),
        "ort, no spinning": lambda model: (onnxruntime(model, spin=False), 1),
        f"ort, {share} threads each": lambda model: (onnxruntime(model, share, spin=False), 1),
        "ort, one thread": lambda model: (onnxruntime(model, 1, spin=False), cores),
    }
    if find_spec("openvino") is not None:
        found["openvino, throughput"] = openvino
    return found


def asking(mix: Mix, feeds: Mapping[str, Feed], make: Callable[[str], tuple[Run, int]], closing: ExitStack) -> Asks:
    """Begins runs of a mix's streams on a configuration; each stream has a network and threads of its own."""
    runs: dict[str, Run] = {}
    threads: dict[str, ThreadPoolExecutor] = {}
    for stream in mix.streams:
        runs[stream.name], at_once = make(stream.model)
        threads[stream.name] = ThreadPoolExecutor(1 if stream.arrival == "closed" else at_once)
        closing.callback(threads[stream.name].shutdown, wait=True, cancel_futures=True)
        runs[stream.name](feeds[stream.model])

    def ask(stream: Stream, due_ms: float | None) -> Future[Any]:
        return threads[stream.name].submit(runs[stream.name], feeds[stream.model])

    return ask
