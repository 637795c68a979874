"""What every command that loads a network takes: the network, its inputs, the planner, the processors."""

import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args
from zipfile import BadZipFile

import click
import numpy as np
from click.shell_completion import CompletionItem
from rich.console import Console

from agent_sdk.agent import Agent
from agent_sdk.cli.terminal import TerminalProgress
from agent_sdk.errors import InputError
from agent_sdk.journey.services import A_LITTLE_S
from agent_sdk.planner.client import DEADLINE_S
from agent_sdk.progress import Progress
from agent_sdk.runtimes.torch.choice import MIXED, PRECISIONS
from agent_sdk.session import Session
from hope_schema.plan import Method

planner: Final = click.option(
    "--planner", metavar="URL", help="planner to ask; without it one runs inside this process"
)
hosts: Final = click.option(
    "--hosts", type=click.Path(path_type=Path), metavar="FILE.toml", help="other machines that may help"
)
soc: Final = click.option("--soc", metavar="NAME", help="SoC the profile belongs to (default: read from this machine)")
processors: Final = click.option(
    "--processors", metavar="LIST", help="comma-separated ids or runtimes, e.g. ort@0-7,ort@8-15"
)
precision: Final = click.option(
    "--precision",
    type=click.Choice((*PRECISIONS, MIXED)),
    default=PRECISIONS[0],
    show_default=True,
    help="what torch computes float32 in, where --processors does not say it as in cuda:0/fp16; "
    "mixed lets the planner choose op by op",
)
SEED: Final = click.IntRange(0, 2**32 - 1)


def positive(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise click.BadParameter(f"'{text}' is not a number above 0")
    return value


def input_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """``INPUT=1,3,640,640``: the shape of one input."""
    name, equals, sizes = text.rpartition("=")
    try:
        shape = tuple(int(size) for size in sizes.split(",")) if sizes else ()
    except ValueError:
        equals = ""
    if not (name and equals):
        raise click.BadParameter(f"'{text}' is not INPUT=SIZE,SIZE,...: for example x=1,3,640,640")
    return name, shape


def refuse_unwritable(option: str, file: Path) -> None:
    """Raise InputError for a file that cannot be written, before anything is measured."""
    if not file.absolute().parent.is_dir():
        raise InputError(f"{option}: there is no directory '{file.absolute().parent}'")
    if file.is_dir():
        raise InputError(f"{option}: '{file}' is a directory; give a file in it")


def write(what: str, file: Path, data: bytes) -> None:
    """Write a file. Raises InputError where that cannot be done."""
    try:
        file.write_bytes(data)
    except OSError as error:
        raise InputError(f"cannot write {what} to '{file}': {error.strerror}") from error


@dataclass(frozen=True)
class Given:
    """A network, and how to load it, as the command line says; ``agent`` are arguments of ``Agent``."""

    model: str
    shape: tuple[tuple[str, tuple[int, ...]], ...]
    input: Path | None
    seed: int
    quiet: bool
    verbose: bool
    agent: Mapping[str, Any]

    @functools.cached_property
    def inputs(self) -> Mapping[str, np.ndarray] | None:
        """What ``--input`` holds. Raises InputError where it is no ``.npz`` file."""
        if self.input is None:
            return None
        try:
            with np.load(self.input, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        except OSError as error:
            raise InputError(f"--input: cannot read '{self.input}': {error.strerror or error}") from error
        except (ValueError, EOFError, BadZipFile, AttributeError, TypeError) as error:  # TypeError: it is one array
            cure = "numpy.savez writes one: numpy.savez(FILE, x=array)"
            raise InputError(f"--input: '{self.input}' is no .npz file of arrays by input name; {cure}") from error

    @functools.cached_property
    def shape_sets(self) -> list[dict[str, tuple[int, ...]]]:
        """What ``--input`` and ``--shape`` say: an input that is named again begins a set, as the one before else."""
        sets = [{name: array.shape for name, array in (self.inputs or {}).items()}]
        named: set[str] = set()
        for name, shape in self.shape:
            if name in named:
                sets.append({**sets[-1]})
                named.clear()
            named.add(name)
            sets[-1][name] = shape
        return sets

    @contextmanager
    def loaded(
        self, *, all_rivals: bool, shapes: Mapping[str, tuple[int, ...]] | None = None
    ) -> Iterator[tuple[Agent, Session]]:
        """An agent and the network ready to run, with progress on stderr; at the one set of shapes unless given.

        Raises what ``Agent.load`` raises.
        """
        if self.verbose:
            logging.basicConfig(format="%(message)s")
            logging.getLogger("agent_sdk").setLevel(logging.INFO)
            logging.getLogger("agent_sdk.progress").setLevel(logging.WARNING)  # which is shown already
        with TerminalProgress(Console(stderr=True, quiet=self.quiet)) as progress:
            progress(Progress("starting the runtimes"))
            if shapes is None:
                shapes, *others = self.shape_sets
                if others:
                    raise click.UsageError("--shape names an input twice; `hope-agent prepare` takes several shapes")
            with (
                Agent(**self.agent, progress=progress) as agent,
                agent.load(
                    self.model, shapes=shapes, seed=self.seed, background=False, all_rivals=all_rivals
                ) as session,
            ):
                yield agent, session


def networks(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Complete a network: names of the zoo, where that is installed, and files."""
    files = [CompletionItem(begun, type="file")]
    try:
        import hope_zoo
    except ImportError:
        return files
    return [CompletionItem(name) for name in hope_zoo.names() if name.startswith(begun)] + files


_OPTIONS: Final = (
    click.argument("network", metavar="MODEL", required=False, shell_complete=networks),
    click.option("--model", metavar="NAME|FILE", shell_complete=networks, help="the same as MODEL"),
    click.option(
        "--shape",
        type=input_shape,
        multiple=True,
        metavar="INPUT=1,3,640,640",
        help="shape of an input that the file leaves open; once for each such input",
    ),
    click.option("--input", type=click.Path(path_type=Path), metavar="FILE.npz", help="inputs by name (else random)"),
    planner,
    hosts,
    click.option("--token", help="bearer token for the planner (default: of enrolling, else $HOPE_TOKEN)"),
    soc,
    click.option("--frequency", metavar="LABEL", help="operating point (default: read from this machine)"),
    click.option(
        "--method", type=click.Choice(get_args(Method)), default="auto", show_default=True, help="how to plan"
    ),
    processors,
    precision,
    click.option(
        "--measure",
        "measuring_s",
        type=positive,
        default=A_LITTLE_S,
        show_default=True,
        metavar="S",
        help="seconds to measure for, once the planner can predict what it does not know",
    ),
    click.option(
        "--wait", "wait_s", type=click.IntRange(0, 3600), metavar="S", help="let the planner improve the plan so long"
    ),
    click.option(
        "--planner-timeout",
        "planner_timeout_s",
        type=positive,
        default=DEADLINE_S,
        show_default=True,
        metavar="S",
        help="seconds a call to a remote planner may take before what is at hand answers",
    ),
    click.option("--seed", type=SEED, default=0, show_default=True, metavar="N", help="of weights and inputs"),
    click.option("--quiet", is_flag=True, help="no progress"),
    click.option("-v", "--verbose", is_flag=True, help="say who answers, and why, on stderr"),
)
_AGENT: Final = (
    "planner", "hosts", "token", "soc", "frequency", "method", "processors", "precision", "measuring_s", "wait_s",
    "planner_timeout_s",
)  # fmt: skip
"""Those of these options that an agent is made with."""


def loads_a_network(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command these options; what they say is its first argument, a ``Given``."""

    @functools.wraps(command)
    def called(*, network: str | None, model: str | None, **options: Any) -> int:
        if network is not None and model is not None:
            raise click.UsageError("name one network, as MODEL or with --model")
        named = network or model
        if not named:
            raise click.UsageError("name a network: a file, or one that `hope-agent zoo list` shows")
        agent = {name: options.pop(name) for name in _AGENT}
        own = {name: options.pop(name) for name in ("shape", "input", "seed", "quiet", "verbose")}
        return command(Given(named, **own, agent=agent), **options)

    for option in reversed(_OPTIONS):
        called = option(called)
    return called
