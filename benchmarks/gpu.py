"""A GPU that runs several operators at once: our plans in one CUDA graph beside one stream, torch and its compiler.

    python -m benchmarks.gpu [--models A,B] [--precision fp16,tf32] [--compile reduce-overhead,max-autotune]
                             [--batches 1,4,16] [--pair MODELS] [--sessions N] [--json benchmarks/results/gpu.json]

Configurations, all of one network, weights and precision, interleaved, medians of the device's own clock. The network
is folded first for all (batch norms in the weights before them), and channels stand last in fp16 and tf32:

    eager        torch's calls one by one
    graph        the same calls in one CUDA graph on one stream: what torch gives by hand
    one stream   our kernels (the fastest recipe of each) in one CUDA graph on one stream
    auto         our kernels in one CUDA graph on the streams of the planner's plan
    compile ...  torch.compile of the same calls, with its weights frozen
    ort ...      ONNX Runtime's CUDA provider in CUDA graphs, and TensorRT, where this machine has them
    N in flight  torch's graph and our kernels on one stream, N times at once on as many streams; and our session, from
                 as many threads, from arrays on the host to arrays there; by the run

``ratio_to_graph`` is against torch's own calls in a graph, ``ratio_to_one_stream`` against our kernels one after the
other: the second is what running side by side gives alone. ``ratio_to_best`` is against the fastest of what is not
ours, which ``best`` names. Beside a plan stand ``longest_path_us``, of our kernels each timed alone, and, from arrays
on the host to arrays there, its makespan, what was measured, and ``bound_us``, below which the planner has proved that
no schedule of what it was told comes. ``--pair`` plans networks for a part of the GPU beside the
cores (``benchmarks.pair``), ``--joint`` has several share one (``benchmarks.gpu_sessions``). ``--sessions`` opens and
closes so many sessions of the first network, and says what memory they leave behind. What stands in the file of
``--json`` and is not measured again stays in it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

import hope_zoo as zoo
from agent_sdk.agent import Agent
from agent_sdk.journey.services import THOROUGH_S
from agent_sdk.journey.verify import relative_error
from agent_sdk.model import Model, pre_softmax_outputs
from agent_sdk.model.bounds import Guard
from agent_sdk.model.feeds import draw
from agent_sdk.runtimes.base import Segment, Timed, whole_network
from agent_sdk.runtimes.torch.driver import CudaGraphs
from agent_sdk.runtimes.torch.executable import TorchExecutable
from agent_sdk.runtimes.torch.kernel import build
from agent_sdk.runtimes.torch.processor import TorchProcessor
from benchmarks import cli, gpu_sessions, pair, providers
from benchmarks.baselines import batched, folded, frozen, longest_path_us
from benchmarks.gpu_recordings import Configuration, beside, interleave, recorded
from benchmarks.gpu_rounding import rounding_error
from benchmarks.gpu_table import flight_table, network_table, verdicts
from benchmarks.results import left_out, report, say
from benchmarks.streams import traced_streams
from hope_schema import Plan, merge

MODELS = (
    "inception_v1,inception_v3,inception_v4,nasnet_large,pnasnet_large,hrnet_w18,squeezenet,densenet121,resnet50,vgg19"
)
COMPILED = frozenset({"inception_v1", "inception_v3", "nasnet_large", "hrnet_w18"})
AT_ONCE: Final = 4
"""Runs in flight at once where throughput is asked for."""
OURS: Final = frozenset({"one stream", "auto"})


def watched(model: Model, found: Plan | None = None) -> Segment:
    """The whole network, timed as a plan says, with the outputs that answers are compared by."""
    steps = found.steps if found else ()
    times = tuple(Timed(step.ops, step.start_us, step.finish_us, step.alone_us, step.recipe) for step in steps)
    ops = tuple(op for step in found.order for op in found.step[step].ops) if found else ()
    outputs = tuple(dict.fromkeys(pre_softmax_outputs(model.graph)))
    whole = whole_network(model)
    return replace(whole, ops=ops or whole.ops, outputs=outputs, exports=frozenset(outputs), times=times)


def plain(own: TorchProcessor, model: Model) -> TorchExecutable:
    """Torch's own calls, no recipe but the table's; nobody looks at what they read."""
    kernels = [build(super_op, model, own.precision, own.device) for super_op in merge(model.graph)]
    return TorchExecutable(own, watched(replace(model, guard=Guard())), kernels)


def as_function(executable: TorchExecutable, feeds: Mapping[str, np.ndarray]) -> tuple[Callable[..., Any], list[Any]]:
    """A segment's calls as a function of tensors, and the tensors."""
    own = executable.processor
    outputs = executable.segment.outputs
    kernels = executable.way.kernels

    def network(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        memory = dict(zip(feeds, tensors, strict=True))
        for kernel in kernels:
            memory.update(zip(kernel.outputs, kernel(*[memory[name] for name in kernel.inputs]), strict=True))
        return tuple(memory[name].float() for name in outputs)

    given = [torch.from_numpy(array).to(own.device) for array in feeds.values()]
    return network, [own.precision.taken(tensor) for tensor in given]


def called(function: Callable[..., Any], given: list[Any], names: Sequence[str]) -> Configuration:
    """A function of tensors."""
    last: list[Any] = []

    def launch() -> None:
        last[:] = [function(*given)]

    def outputs() -> dict[str, np.ndarray]:
        launch()
        torch.cuda.synchronize()
        return {name: tensor.cpu().numpy() for name, tensor in zip(names, last[0], strict=True)}

    return Configuration(launch, outputs)


def compiled(executable: TorchExecutable, feeds: Mapping[str, np.ndarray], mode: str) -> Configuration:
    """Torch's calls through its compiler, which freezes weights only where no gradients are wanted."""
    from torch.fx.experimental.proxy_tensor import make_fx

    network, given = as_function(executable, feeds)
    made = torch.no_grad()(torch.compile(make_fx(network)(*given), options=frozen(mode)))
    began = time.monotonic()
    for _ in range(4):
        made(*given)
    torch.cuda.synchronize()
    found = called(made, given, executable.segment.outputs)
    found.facts["compile_s"] = round(time.monotonic() - began, 1)
    return found


def network_rows(name: str, precision: str, modes: Sequence[str], traces_to: Path | None) -> list[dict[str, Any]]:
    """All configurations of a network in one precision; ours is planned, tried and mended by an agent."""
    with ExitStack() as opened:
        agent = opened.enter_context(
            Agent(processors="cuda:0", precision=precision, measuring_s=THOROUGH_S, wait_s=gpu_sessions.WAIT_S)
        )
        plain_name, _, batch = name.partition(" x")
        network = batched(folded(zoo.path(plain_name)), int(batch or 1))
        session = opened.enter_context(agent.load(network, background=False))
        executor, model = session.latest.plan_executor, session.latest.model
        own = next(iter(agent.device.processors.values()))
        assert isinstance(own, TorchProcessor)
        assert isinstance(own.driver, CudaGraphs)
        feeds = draw(model, 0)
        right = session.reference.inside(feeds, pre_softmax_outputs(model.graph))
        plan = executor.program.plan
        # NOTE: before anything is traced: a profiler that has once been attached may slow launches down.
        wall = pair.walls_us(pair.runs({"auto": executor}, feeds))["auto"]
        by_hand = plain(own, model)
        with own.precision.switched():
            configurations = {
                "eager": called(*as_function(by_hand, feeds), watched(model).outputs),
                "graph": recorded(by_hand, feeds),
                "one stream": recorded(own.compile(watched(model)), feeds),
                "auto": recorded(own.compile(watched(model, plan)), feeds),
            }
            for mode in modes if name in COMPILED else ():
                with left_out(model=name, precision=precision, config=f"compile {mode}"):
                    configurations[f"compile {mode}"] = compiled(by_hand, feeds, mode)
            stream = own.driver.stream(0)
            if name in COMPILED:
                wanted = watched(model).outputs
                for label, call in providers.baselines(network, feeds, wanted, precision, stream).items():
                    configurations[label] = Configuration(*call)
                flown = {
                    "graph": partial(plain, own, model),
                    "one stream": partial(own.compile, watched(model)),
                }
                configurations |= {
                    f"{AT_ONCE} in flight {label}": beside([recorded(make(), feeds) for _ in range(AT_ONCE)])
                    for label, make in flown.items()
                }
            interleave(configurations, stream)
            errors = {label: relative_error(one.outputs(), right) for label, one in configurations.items()}
            if traces_to is not None:
                facts = traced_streams(configurations["auto"].launch, traces_to / f"{name}-{precision}.trace.json")
                configurations["auto"].facts |= facts
        medians = {label: statistics.median(one.samples) for label, one in configurations.items()}
        flown_us: float | None = None
        if name in COMPILED:
            with agent.load(network, in_flight=AT_ONCE, background=False) as session_of_several:
                flown_us = round(gpu_sessions.flown_us(session_of_several, feeds, AT_ONCE), 1)
        fastest = min((us for label, us in medians.items() if label.startswith("compile")), default=None)
        rivals = [label for label, one in configurations.items() if one.runs == 1 and label not in OURS]
        best = min(rivals, key=lambda label: medians[label])
        alone = {op: timing.us for op, timing in own.time_ops(model, math.inf).items()}
        rounded = rounding_error(model, precision, feeds, right, own.device)
        rows = []
        for label, one in configurations.items():
            row: dict[str, Any] = {
                "model": name,
                "precision": precision,
                "config": label,
                "median_us": round(medians[label], 1),
                "ratio_to_one_stream": round(medians[label] / medians["one stream"], 4),
                "ratio_to_graph": round(medians[label] / medians["graph"], 4),
                "ratio_to_compile": round(medians[label] / fastest, 4) if fastest else None,
                "ratio_to_best": round(medians[label] / medians[best], 4),
                "best": best,
                "max_rel_error": errors[label],
                "rounding_error": rounded,
                **one.facts,
            }
            if label == "auto":
                row |= {
                    "predicted_us": round(plan.makespan_us, 1),
                    "bound_us": round(plan.lower_bound_us, 1),
                    "longest_path_us": round(longest_path_us(model, alone), 1),
                    "wall_us": round(wall, 1),
                    "in_flight_us": flown_us,
                    "prediction_error": round(plan.makespan_us / wall - 1, 4),
                    "method": plan.method,
                    "recipes": sum(step.recipe is not None for step in plan.steps),
                    "slowdown": round(own.slowdown, 3),
                    "profiled_s": round(session.latest.obtained.profiling_seconds, 1),
                }
            rows.append(row)
            say(row)
        return rows


def main() -> None:
    """Print every row and the table, and write both."""
    parser = cli.measuring("gpu", __doc__)
    parser.add_argument("--models", type=cli.names, default=cli.names(MODELS))
    parser.add_argument("--precision", type=cli.names, default=["fp16", "tf32"])
    parser.add_argument("--compile", type=cli.names, default=["reduce-overhead", "max-autotune"], help="modes, or ''")
    parser.add_argument("--batches", type=cli.names, default=[], help="of the first network, beside batch 1")
    parser.add_argument("--pair", type=cli.names, default=[], help="networks for a part of the GPU beside the cores")
    parser.add_argument("--joint", action="store_true", help="several networks at once")
    parser.add_argument("--sessions", type=int, default=0, help="how many are opened and closed")
    parser.add_argument("--trace", type=Path, metavar="DIRECTORY", help="write Perfetto traces there")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    tasks: list[tuple[str, Callable[[], list[dict[str, Any]]]]] = []
    batches = [f"{name} x{batch}" for name in options.models[:1] for batch in options.batches if batch != "1"]
    for name, precision in product([*options.models, *batches], options.precision):
        work = partial(network_rows, name, precision, options.compile, options.trace)
        tasks.append((f"{name} {precision}", work))
    for name in options.pair:
        tasks.append((f"{name}, pair", partial(pair.rows, name, options.trace)))
    if options.joint:
        tasks.append(("joint", partial(gpu_sessions.rows, options.precision[0])))
    if options.sessions:
        name, precision = options.models[0], options.precision[0]
        tasks = [(f"{name}, sessions", partial(gpu_sessions.opened_and_closed, name, precision, options.sessions))]
    rows: list[dict[str, Any]] = []
    if options.json and options.json.exists():
        rows = json.loads(options.json.read_text())["networks"]
    for what, task in tasks:
        found = [row | {"gpu": torch.cuda.get_device_name(0)} for row in _left_out_where_it_fails(task, what)]
        fresh = {_group(row) for row in found}
        rows = [row for row in rows if _group(row) not in fresh] + found
        if options.json:  # after every network: a lent machine may be taken back
            tables = [network_table(rows), flight_table(rows)]
            with contextlib.redirect_stdout(None):
                report(options.json, verdicts(rows), tables, torch=torch.__version__, networks=rows)
    verdicts(rows)
    network_table(rows).show()
    flight_table(rows).show()


def _group(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """What was measured together."""
    apart = row["config"].split()[0]
    return row["model"], row["precision"], apart if apart in ("pair", "sessions", "joint", "deadlines") else ""


def _left_out_where_it_fails(work: Callable[[], list[dict[str, Any]]], what: str) -> list[dict[str, Any]]:
    try:
        return work()
    except Exception as problem:
        logging.exception("%s failed: %s", what, problem)
        return []
    finally:
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
