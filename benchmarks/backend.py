"""``torch.compile(backend="hope")`` beside the modes of torch's own compiler, on networks of torchvision's.

    python -m benchmarks.backend [--models googlenet,resnet50] [--modes default,reduce-overhead,max-autotune]
                                 [--device cuda|cpu] [--rounds 100] [--json benchmarks/results/backend.json]

Modules in inference mode under ``no_grad``, batch 1, random weights; in float16 on a GPU, in float32 on the CPU.
Torch's modes have their weights frozen, so that they fold what an expert folds. Each time is that of a call until the
device is done, medians. All are called in turns of three calls, of which the last counts: the first finds the caches
full of another one's code, which an application that calls one network never meets. Ours has its plan by then, and is
checked against eager.

Rows of networks that are already in the file, and are not asked for, stay: a lent machine may be taken back.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from agent_sdk.agent import Agent
from agent_sdk.dynamo import Compiled, hope
from agent_sdk.journey.services import THOROUGH_S
from agent_sdk.journey.verify import relative_error
from benchmarks import cli
from benchmarks.baselines import frozen
from benchmarks.results import Measure, Table, left_out, report, say, verdict

MODELS: Final = "googlenet,inception_v3,resnet50,densenet121,mobilenet_v3_large"
MODES: Final = "default,reduce-overhead,max-autotune"
SIZES: Final[Mapping[str, int]] = {"inception_v3": 299}
"""Of the images that a network is made for, where that is not 224."""
MEAN: Final = 0.75
WORST: Final = 1.02
ERROR: Final = 2.0
"""How far from eager float32 ours may be, times what eager in the same format is."""
WAIT_S: Final = 10.0
"""How long an improved plan is waited for: twice what the planner spends by default."""
PLANNED_S: Final = 300.0
WARM: Final = 10
TURN: Final = 3
"""Calls in a row."""

Call = Callable[[], Any]


def network(name: str, device: torch.device) -> tuple[torch.nn.Module, torch.Tensor]:
    """A network of torchvision's with random weights, in float32, and an image for it."""
    models: Any = importlib.import_module("torchvision.models")
    torch.manual_seed(0)
    extra = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    module: torch.nn.Module = models.get_model(name, weights=None, **extra).eval().to(device)
    size = SIZES.get(name, 224)
    return module, torch.randn(1, 3, size, size, device=device)


def ours(module: torch.nn.Module, image: torch.Tensor, agent: Agent) -> tuple[Call, str]:
    """The module by our backend, once its plan is there; and who answers, or why nobody of ours does."""
    made: list[Compiled] = []

    def noting(graph: torch.fx.GraphModule, inputs: Any, **options: Any) -> Compiled:
        made.append(hope(graph, inputs, **options))
        return made[-1]

    options: dict[str, Any] = {"agent": agent}
    fast = torch.compile(module, backend=noting, options=options)
    fast(image)
    until = time.monotonic() + PLANNED_S
    for one in made:
        for planned in one.sessions.values():
            planned.session.wait(max(0.0, until - time.monotonic()))
    fast(image)
    said = [repr(planned.session) for one in made for planned in one.sessions.values()]
    return lambda: fast(image), "; ".join([*said, *(one.why for one in made if one.why)])


def theirs(module: torch.nn.Module, image: torch.Tensor, mode: str) -> Call:
    """The module by torch's own compiler, warm."""
    fast = torch.compile(module, options=frozen(mode))
    for _ in range(3):
        fast(image)
    return lambda: fast(image)


def interleaved(calls: Mapping[str, Call], rounds: int, done: Call) -> dict[str, float]:
    """The median of what the last call of each turn takes until the device is done, microseconds."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(WARM + rounds):
        for name, call in calls.items():
            for _ in range(TURN):
                torch.compiler.cudagraph_mark_step_begin()
                done()
                began = time.perf_counter_ns()
                call()
                done()
                us = (time.perf_counter_ns() - began) / 1e3
            if turn >= WARM:
                took[name].append(us)
    return {name: statistics.median(us) for name, us in took.items()}


def relative(found: torch.Tensor, right: torch.Tensor) -> float:
    """The largest difference relative to the largest value that is right; infinite where one is no number."""
    return relative_error({"": found.float().cpu().numpy()}, {"": right.cpu().numpy()})


def rows_of(name: str, modes: list[str], device: torch.device, rounds: int, agent: Agent) -> list[dict[str, Any]]:
    """One network by all: a row each."""
    torch._dynamo.reset()
    module, image = network(name, device)
    right = module(image)
    if device.type == "cuda":
        module, image = module.half(), image.half()
    format_error = relative(module(image), right)
    calls: dict[str, Call] = {"eager": lambda: module(image)}
    facts: dict[str, dict[str, Any]] = {}
    began = time.monotonic()
    calls["hope"], said = ours(module, image, agent)
    facts["hope"] = {"seconds": round(time.monotonic() - began, 1), "answers": said}
    for mode in modes:
        began = time.monotonic()
        with left_out(model=name, config=mode):
            calls[mode] = theirs(module, image, mode)
        facts[mode] = {"seconds": round(time.monotonic() - began, 1)}
    us = interleaved(calls, rounds, torch.cuda.synchronize if device.type == "cuda" else lambda: None)
    best = min((one for one in us if one != "hope"), key=lambda one: us[one])
    rows = []
    for label, call in calls.items():
        row = {
            "model": name,
            "config": label,
            "us": round(us[label], 1),
            "ratio_to_best": round(us[label] / us[best], 4),
        }
        row |= {"best": best, "error": relative(call(), right), "format_error": format_error, **facts.get(label, {})}
        say(row)
        rows.append(row)
    return rows


def judged(rows: list[dict[str, Any]], bars: bool) -> list[Measure]:
    """What must hold of ours; without ``bars`` it is only said."""
    own = [row for row in rows if row["config"] == "hope"]
    ratios = {row["model"]: row["ratio_to_best"] for row in own}
    mean = statistics.geometric_mean(ratios.values())
    worst = max(ratios, key=lambda name: ratios[name])
    error = max(row["error"] / max(row["format_error"], 1e-5) for row in own)
    found = [
        verdict(f"backend: hope ÷ the best of torch's modes, {len(ratios)} networks, geometric mean", mean, MEAN),
        verdict(f"backend: the worst of them, {worst}", ratios[worst], WORST),
        verdict("backend: error against eager float32 ÷ that of eager in the same format", error, ERROR),
    ]
    return found if bars else [Measure(one.measure, one.value, one.must, None) for one in found]


def table(rows: list[dict[str, Any]]) -> Table:
    """A line per network."""
    configs = list(dict.fromkeys(row["config"] for row in rows))
    lines: dict[str, dict[str, Any]] = {}
    for row in rows:
        lines.setdefault(row["model"], {})[row["config"]] = row["us"] / 1e3
        if row["config"] == "hope":
            lines[row["model"]] |= {"÷": row["ratio_to_best"], "best": row["best"]}
    columns = [*configs, "÷", "best"]
    cells = [[name, *(line.get(column) for column in columns)] for name, line in lines.items()]
    return Table("a call, ms; hope ÷ the best of torch's", ["network", *configs, "ratio", "best of torch's"], cells)


def main() -> None:
    """Print every row, the table and what must hold; write them after every network."""
    options = cli.measuring("backend", __doc__)
    options.add_argument("--models", type=cli.names, default=cli.names(MODELS), help="of torchvision.models")
    options.add_argument("--modes", type=cli.names, default=cli.names(MODES), help="of torch's compiler")
    options.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="a GPU (default) or the cores")
    options.add_argument("--rounds", type=int, default=100, help="timed calls of each")
    given = options.parse_args()
    try:
        torchvision: Any = importlib.import_module("torchvision")
    except (ImportError, RuntimeError) as error:
        sys.exit(f"skipped: torchvision does not start here ({error})")
    if given.device == "cuda" and not torch.cuda.is_available():
        sys.exit("skipped: torch finds no GPU here; --device cpu measures the cores")
    device = torch.device("cuda:0" if given.device == "cuda" else "cpu")
    on_gpu = device.type == "cuda"
    named: dict[str, Any] = {"processors": str(device), "precision": "fp16", "measuring_s": THOROUGH_S}
    rows: list[dict[str, Any]] = []
    if given.json and given.json.exists():
        rows = json.loads(given.json.read_text())["networks"]
    facts = {
        "device": torch.cuda.get_device_name(0) if on_gpu else "cpu",
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
    }
    with Agent(wait_s=WAIT_S, **named if on_gpu else {}) as agent, torch.no_grad():
        for name in given.models:
            rows = [row for row in rows if row["model"] != name]
            rows += rows_of(name, given.modes, device, given.rounds, agent)
            if given.json:
                report(given.json, [], **facts, networks=rows)
    report(given.json, judged(rows, on_gpu), [table(rows)], **facts, networks=rows)


if __name__ == "__main__":
    main()
