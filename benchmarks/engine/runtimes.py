"""The runtimes as their own users run them: whole models, default settings but for threads and mode.

One more setting differs: ONNX Runtime's workers do not spin for long when a run has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec

import numpy as np
import onnxruntime as ort

from agent_sdk.model import Model
from agent_sdk.runtimes.ort.options import SPINS, opened, options

Outputs = Mapping[str, np.ndarray]
Run = Callable[[Mapping[str, np.ndarray]], Outputs]


def baselines(model: Model, cores: int) -> dict[str, Run]:
    """Every whole-model configuration by name: ``ort_1``, ``ort_2``, ..., ``ort_all``, ``ort_parallel``, ...

    Powers of two below the number of cores, as far as 16 threads.
    """
    made = {f"ort_{threads}": onnxruntime(model, threads) for threads in (1, 2, 4, 8, 16) if threads < cores}
    made |= {"ort_all": onnxruntime(model, cores), "ort_parallel": onnxruntime(model, cores, parallel=True)}
    if find_spec("openvino") is not None:
        made |= openvino(model)
    return made


def onnxruntime(model: Model, threads: int, *, parallel: bool = False) -> Run:
    """ONNX Runtime. Its workers spin for a shorter time than by default: they would slow down whoever is timed next."""
    own = options(threads, SPINS)
    own.inter_op_num_threads = threads if parallel else 1
    own.execution_mode = ort.ExecutionMode.ORT_PARALLEL if parallel else ort.ExecutionMode.ORT_SEQUENTIAL
    session = opened(model.proto.SerializeToString(), own)
    names = list(model.graph.outputs)
    return lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True))


def openvino(model: Model) -> dict[str, Run]:
    """OpenVINO on all cores, tuned for latency; and over all its devices together where it has several."""
    from agent_sdk.runtimes.openvino.processor import runtime

    core = runtime()
    part = core.read_model(model.proto.SerializeToString())
    devices: Sequence[tuple[str, str]] = [("openvino_all", "CPU")]
    if len(core.available_devices) > 1:
        devices = [*devices, ("openvino_hetero", f"HETERO:{','.join(reversed(core.available_devices))}")]

    def run_of(device: str) -> Run:
        config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        request = core.compile_model(part, device, config).create_infer_request()
        names = list(model.graph.outputs)
        feeds = list(model.graph.inputs)

        def run(inputs: Mapping[str, np.ndarray]) -> Outputs:
            request.infer([inputs[name] for name in feeds], share_inputs=True)
            return {name: request.get_output_tensor(index).data.copy() for index, name in enumerate(names)}

        return run

    return {name: run_of(device) for name, device in devices}
