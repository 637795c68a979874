"""Recordings for a GPU, launched by turns, beside each other or one behind the other, on the device's clock."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from agent_sdk.runtimes.torch.executable import TorchCall, TorchExecutable

ROUNDS: Final = 40

Launch = Callable[[], object]


class Configuration:
    """One way to run a network on the device."""

    def __init__(self, launch: Launch, outputs: Callable[[], dict[str, np.ndarray]], **facts: Any) -> None:
        self.launch, self.outputs, self.facts = launch, outputs, facts
        self.samples: list[float] = []
        self.runs = 1


def recorded(executable: TorchExecutable, feeds: Mapping[str, np.ndarray]) -> Configuration:
    """A CUDA graph of ours."""
    own = executable.processor
    inputs = {name: own.place.from_host(array) for name, array in feeds.items()}
    outputs = {name: own.place.allocate(kind) for name, kind in executable.output_types.items()}
    executable.bind(inputs, outputs)  # finds the fastest way: what the others took meanwhile is not the graph's
    gc.collect()
    torch.cuda.empty_cache()
    before, held = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call = executable.bind(inputs, outputs)
    assert isinstance(call, TorchCall)
    torch.cuda.empty_cache()
    return Configuration(
        lambda: call.recording.replay(),  # on the current stream
        lambda: {name: buffer.tensor.cpu().numpy() for name, buffer in outputs.items()},
        streams=executable.way.schedule.streams,
        own_recipes=executable.way.own,
        events=sum(len(issue.waits) for issue in executable.way.schedule.issues),
        graph_bytes=torch.cuda.memory_reserved() - before,
        live_bytes=torch.cuda.max_memory_allocated() - held,
    )


def beside(made: Sequence[Configuration]) -> Configuration:
    """Recordings launched together, each on a stream of its own; what is noted is time by their number."""
    streams = [torch.cuda.Stream() for _ in made]

    def launch() -> None:
        here = torch.cuda.current_stream()
        for one, stream in zip(made, streams, strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                one.launch()
        for stream in streams:
            here.wait_stream(stream)

    found = Configuration(launch, made[0].outputs)
    found.runs = len(made)
    return found


def behind(made: Sequence[Configuration]) -> Configuration:
    """Recordings launched one after the other on one stream; noted likewise."""

    def launch() -> None:
        for one in made:
            one.launch()

    found = Configuration(launch, made[0].outputs)
    found.runs = len(made)
    return found


def interleave(configurations: Mapping[str, Configuration], stream: torch.cuda.Stream) -> None:
    """Run all in turn, and note what each took on the device."""
    with torch.cuda.stream(stream):
        for one in configurations.values():
            for _ in range(3):
                one.launch()
        torch.cuda.synchronize()
        for _ in range(ROUNDS):
            for one in configurations.values():
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record(stream)
                one.launch()
                end.record(stream)
                end.synchronize()
                one.samples.append(begin.elapsed_time(end) * 1e3 / one.runs)
