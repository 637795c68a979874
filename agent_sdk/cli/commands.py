"""``hope-agent``: the main job from a terminal.

Exit codes: 0 ok; 1 a wrong answer, a failed run, or a planner that cannot answer now; 2 bad input or a planner's
refusal, said in one line; 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final
from zipfile import BadZipFile

from agent_sdk.errors import InputError, PlannerStatusError, RateLimitedError, ServerError, printable
from agent_sdk.runtimes.torch.choice import PRECISIONS
from hope_schema.version import VERSION

if TYPE_CHECKING:
    from agent_sdk.cli.report import RunReport
    from agent_sdk.engine.trace import Trace

OK: Final = 0
FAILED: Final = 1
BAD_INPUT: Final = 2
INTERRUPTED: Final = 130
MAX_RUNS: Final = 100_000
CLAIM_VARIABLE: Final = "HOPE_CLAIM"
METHODS: Final = ("auto", "ilp", "greedy", "partitiontuner")
"""What ``hope_schema.plan.Method`` lists, without loading it."""
DEADLINE_S: Final = 10.0
"""Seconds a call to the planner may take by default."""

EXAMPLES: Final = """\
examples:
  hope-agent run --model inception_v1 --compare      measure, plan and run a network of the zoo, and judge the gain
  hope-agent run --model net.onnx --json             your own network; one JSON object on stdout
  hope-agent run --model lstm --planner http://127.0.0.1:8000 --trace lstm.trace.json
  hope-agent run --model squeezenet --processors ort@0,ort@1 --method ilp
  hope-agent devices                                 what this machine has
  hope-agent zoo list                                networks that can be named with --model
  hope-agent zoo build nasnet_mobile --output nasnet.onnx
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except (RateLimitedError, ServerError) as error:
        return _complain(error, FAILED)
    except (InputError, PlannerStatusError) as error:
        return _complain(error, BAD_INPUT)
    except KeyboardInterrupt:
        print("hope-agent: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left; keep Python from complaining about it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) or os.environ.get("HOPE_DEBUG"):
            raise
        return _complain(error, FAILED)


def _complain(error: Exception, code: int) -> int:
    text = printable(str(error)) or type(error).__name__
    known = isinstance(error, InputError | PlannerStatusError) or type(error).__module__.startswith("agent_sdk")
    prefix = "" if known else f"unexpected {type(error).__name__} (set HOPE_DEBUG=1 for details): "
    print(f"hope-agent: {prefix}{text}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hope-agent",
        description="Runs a neural network across all processors of this device.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hope-agent {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="measure, plan, run and check one network",
        description="Measure what the planner lacks, obtain a plan, run it, and check the answer.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("--model", required=True, metavar="NAME|FILE", help="a network of the zoo, or an .onnx file")
    run.add_argument(
        "--shape",
        type=_shape,
        action="append",
        default=[],
        metavar="INPUT=1,3,640,640",
        help="shape of an input that the file leaves open; may be given several times",
    )
    run.add_argument("--input", type=Path, metavar="FILE.npz", help="inputs by name (default: drawn at random)")
    run.add_argument("--planner", metavar="URL", help="planner to ask; without it one runs inside this process")
    run.add_argument("--token", help="bearer token for the planner (default: $HOPE_TOKEN)")
    run.add_argument("--soc", metavar="NAME", help="SoC the profile belongs to (default: read from this machine)")
    run.add_argument("--frequency", metavar="LABEL", help="operating point (default: read from this machine)")
    run.add_argument(
        "--method",
        choices=("auto", "ilp", "greedy", "partitiontuner"),
        default="auto",
        help="how to plan (default: auto)",
    )
    run.add_argument("--processors", metavar="LIST", help="comma-separated ids or runtimes, e.g. ort@0-7,ort@8-15")
    run.add_argument(
        "--precision",
        choices=PRECISIONS,
        default=PRECISIONS[0],
        help="what torch computes float32 in, where --processors does not say it as in cuda:0/fp16 (default: fp32)",
    )
    run.add_argument("--runs", type=_runs, default=10, metavar="N", help="timed runs; the median counts (default: 10)")
    run.add_argument("--compare", action="store_true", help="also time every single processor")
    run.add_argument("--wait", type=_seconds, metavar="S", help="let the planner improve the plan for up to S seconds")
    run.add_argument(
        "--planner-timeout",
        type=_positive,
        default=DEADLINE_S,
        metavar="S",
        help="seconds a call to the planner may take before what is at hand answers (default: %(default)g)",
    )
    run.add_argument("--huge-pages", action="store_true", help="put this process's memory into huge pages")
    run.add_argument(
        "--trace", type=Path, metavar="FILE", help="write a Chrome/Perfetto trace of the middle one of 3 more runs"
    )
    run.add_argument("--seed", type=_seed, default=0, metavar="N", help="seed of weights and inputs (default: 0)")
    run.add_argument(
        "--tolerance",
        type=_positive,
        metavar="X",
        help="largest relative error that is right (default: what the types round to)",
    )
    run.add_argument("--json", action="store_true", help="print one JSON object; progress goes to stderr")
    run.add_argument("--quiet", action="store_true", help="no progress")
    run.set_defaults(command=_run)

    enrol = commands.add_parser("enrol", help="exchange a claim token for a token of this device's own")
    enrol.add_argument("--planner", required=True, metavar="URL", help="the planner to enrol with")
    enrol.add_argument("--claim", metavar="TOKEN", help="the claim an operator gave you (default: $HOPE_CLAIM)")
    enrol.set_defaults(command=_enrol)

    devices = commands.add_parser("devices", help="list this machine's processors")
    devices.add_argument("--json", action="store_true", help="print one JSON object")
    devices.set_defaults(command=_devices)

    zoo = commands.add_parser("zoo", help="networks to try").add_subparsers(required=True, metavar="COMMAND")
    zoo_list = zoo.add_parser("list", help="list the networks")
    zoo_list.add_argument("--json", action="store_true", help="print one JSON object")
    zoo_list.set_defaults(command=_zoo_list)
    zoo_build = zoo.add_parser("build", help="write a network as an .onnx file")
    zoo_build.add_argument("name", metavar="NAME")
    zoo_build.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: the cache directory")
    zoo_build.add_argument("--seed", type=_seed, default=0, metavar="N", help="seed of the weights (default: 0)")
    zoo_build.set_defaults(command=_zoo_build)
    return parser


def _run(options: argparse.Namespace) -> int:
    """Carry out ``hope-agent run``."""
    from rich.console import Console

    from agent_sdk.agent import Agent
    from agent_sdk.cli.examine import examine, examine_whole
    from agent_sdk.cli.report import show, show_whole
    from agent_sdk.cli.terminal import TerminalProgress

    if options.trace is not None and not options.trace.absolute().parent.is_dir():
        raise InputError(f"--trace: there is no directory '{options.trace.absolute().parent}'")
    if options.trace is not None and options.trace.is_dir():
        raise InputError(f"--trace: '{options.trace}' is a directory; give a file in it")
    inputs = _read_inputs(options.input) if options.input is not None else None
    shapes = {name: array.shape for name, array in (inputs or {}).items()} | dict(options.shape)
    errors = Console(stderr=True, quiet=options.quiet)
    with (
        TerminalProgress(errors) as progress,
        Agent(
            options.planner,
            token=options.token,
            soc=options.soc,
            frequency=options.frequency,
            processors=options.processors,
            precision=options.precision,
            method=options.method,
            wait_s=options.wait,
            planner_timeout_s=options.planner_timeout,
            huge_pages=options.huge_pages,
            progress=progress,
        ) as agent,
        agent.load(options.model, shapes=shapes, seed=options.seed, all_rivals=options.compare) as session,
    ):
        if not session.ready():
            whole = examine_whole(session, inputs, runs=options.runs, seed=options.seed, tolerance=options.tolerance)
            print(json.dumps(whole.as_json(), allow_nan=False)) if options.json else show_whole(whole, Console())
            return OK if whole.verdict.correct else FAILED
        report, trace = examine(
            agent,
            session,
            inputs,
            runs=options.runs,
            compare=options.compare,
            seed=options.seed,
            tolerance=options.tolerance,
        )
    if options.json:
        print(json.dumps(report.as_json(), allow_nan=False))
    else:
        show(report, Console())
    if not report.correct:
        print(f"hope-agent: wrong answer: {_what_differs(report)}", file=sys.stderr)
    if options.trace is not None:
        _write_trace(options.trace, trace)
    return OK if report.correct else FAILED


def _read_inputs(file: Path) -> dict[str, Any]:
    import numpy as np

    try:
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise InputError(f"--input: '{file}' is no .npz file of arrays by input name ({error})") from error


def _what_differs(report: RunReport) -> str:
    error = report.max_rel_error
    if error is None or not math.isfinite(error):
        return "the outputs cannot be compared with the whole model's: one is missing, of another shape or not finite"
    return (
        f"the outputs differ from the whole model's by {error:.2e} of the largest value, "
        f"more than --tolerance {report.tolerance:.2e}"
    )


def _write_trace(file: Path, trace: Trace) -> None:
    from agent_sdk.engine.trace import to_perfetto

    try:
        file.write_text(json.dumps(to_perfetto(trace)))
    except OSError as error:
        raise InputError(f"cannot write the trace to '{file}': {error.strerror}") from error


def _enrol(options: argparse.Namespace) -> int:
    """Carry out ``hope-agent enrol``."""
    from agent_sdk.device.soc import read_soc
    from agent_sdk.paths import state_directory
    from agent_sdk.planner.blocking import BlockingPlanner
    from agent_sdk.planner.client import PlannerClient
    from agent_sdk.planner.identity import device_id, prepare_tokens, store_token, versions
    from hope_schema import Enrolment

    claim = options.claim or os.environ.get(CLAIM_VARIABLE)
    if not claim:
        raise InputError(f"an enrolment needs a claim: --claim TOKEN, or {CLAIM_VARIABLE} in the environment")
    soc, state = read_soc(), state_directory()
    request = Enrolment(device_id=device_id(state), soc=soc.name, frequency=soc.frequency, versions=versions())
    try:
        prepare_tokens(state)
    except OSError as error:
        raise InputError(f"not enrolled: a token could not be kept in '{state}': {error.strerror}") from error
    with BlockingPlanner(PlannerClient(options.planner)) as planner:
        receipt = planner.call(lambda client: client.enrol(claim, request))
    try:
        store_token(state, options.planner, receipt.token)
    except OSError as error:
        raise InputError(f"enrolled, but the token cannot be kept in '{state}': {error.strerror}") from error
    print(f"enrolled as {receipt.device_id}; hope-agent run --planner {options.planner} now uses its own token")
    return OK


def _devices(options: argparse.Namespace) -> int:
    """Carry out ``hope-agent devices``."""
    from rich.console import Console

    from agent_sdk.cli.report import list_rows
    from agent_sdk.device.discovery import discover
    from agent_sdk.device.soc import read_soc

    soc = read_soc()
    processors = discover(soc=soc)
    specs = [processor.spec for processor in processors]
    details = [processor.details for processor in processors]
    for processor in processors:
        processor.close()
    if options.json:
        rows = [
            spec.model_dump(mode="json") | {"kind": spec.kind, "details": text}
            for spec, text in zip(specs, details, strict=True)
        ]
        print(json.dumps({"soc": soc.name, "frequency": soc.frequency, "processors": rows}))
        return OK
    Console().print(
        list_rows(
            f"{soc.name} at {soc.frequency}",
            ("processor", "runtime", "threads", "core class", "resources"),
            [
                (s.id, f"{s.runtime} {s.version}", str(s.threads), text or s.core_class, ", ".join(s.resources))
                for s, text in zip(specs, details, strict=True)
            ],
        )
    )
    return OK


def _zoo_list(options: argparse.Namespace) -> int:
    """Carry out ``hope-agent zoo list``."""
    from rich.console import Console

    from agent_sdk.cli.report import list_rows

    zoo = _zoo()
    networks = [zoo.describe(name) for name in zoo.names()]
    if options.json:
        print(json.dumps({"models": [dataclasses.asdict(network) for network in networks]}))
        return OK
    rows = [
        (
            network.name,
            str(network.ops),
            f"{network.parameters / 1e6:.1f}",
            f"{network.megabytes:.0f}",
            ", ".join("x".join(map(str, shape)) for shape in network.inputs.values()),
            network.source,
        )
        for network in networks
    ]
    columns = ("name", "ops", "million weights", "MB", "inputs", "source")
    Console().print(list_rows("networks of the zoo", columns, rows))
    return OK


def _zoo() -> ModuleType:
    try:
        import hope_zoo
    except ImportError as error:
        raise InputError("the zoo is not installed (in a checkout: pip install ./hope_zoo)") from error
    return hope_zoo


def _zoo_build(options: argparse.Namespace) -> int:
    """Carry out ``hope-agent zoo build``."""
    zoo = _zoo()
    if options.output is None:
        print(zoo.path(options.name, options.seed))
        return OK
    data = zoo.build(options.name, options.seed).SerializeToString(deterministic=True)
    try:
        options.output.write_bytes(data)
    except OSError as error:
        raise InputError(f"cannot write '{options.output}': {error.strerror}") from error
    print(options.output)
    return OK


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, sizes = text.rpartition("=")
    try:
        shape = tuple(int(size) for size in sizes.split(",")) if sizes else ()
    except ValueError:
        equals = ""
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"'{text}' is not INPUT=SIZE,SIZE,...: for example x=1,3,640,640")
    return name, shape


def _runs(text: str) -> int:
    return _between(text, 1, MAX_RUNS)


def _seed(text: str) -> int:
    return _between(text, 0, 2**32 - 1)


def _seconds(text: str) -> int:
    return _between(text, 0, 3600)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0")
    return value


def _between(text: str, low: int, high: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from None
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"{value} is not between {low} and {high}")
    return value
