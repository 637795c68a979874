"""OpenVINO as its own users run it: tuned for latency, its threads where it likes them."""

from typing import Any

from typing_extensions import override

from agent_sdk.errors import CompilationFailed
from agent_sdk.machine.soc import Soc
from agent_sdk.model.weights import LightModels
from agent_sdk.runtimes.host import HostPlace
from agent_sdk.runtimes.openvino.processor import CPU, FAILURES, AnyCore, OpenVinoProcessor, runtime, translated


class PlainOpenVino(OpenVinoProcessor):
    """OpenVINO on all cores with its own defaults."""

    def __init__(self, soc: Soc, *, lights: LightModels | None = None) -> None:
        super().__init__(soc, frozenset(soc.cores), lights=lights)
        self.spec = self.spec.model_copy(update={"id": "openvino", "runtime": "openvino", "place": "host/openvino"})
        self.place = HostPlace(self.spec.place)

    @override
    def compiled(self, part: Any, core: AnyCore | None = None, **settings: Any) -> Any:
        config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"} | settings
        try:
            return (core or runtime()).compile_model(part, CPU, config)
        except FAILURES as error:
            raise translated(error, self.id, CompilationFailed, "refused the network") from error
