"""``hope-agent serve``: networks for other programs, over the Open Inference Protocol."""

import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from agent_sdk.agent import Agent
from agent_sdk.cli import options
from agent_sdk.cli.terminal import TerminalProgress
from agent_sdk.errors import InputError
from agent_sdk.model.weights import available_bytes
from agent_sdk.progress import Progress
from agent_sdk.scheduling.mixes import read_rate
from agent_sdk.scheduling.policies import DEFAULT, POLICIES
from agent_sdk.scheduling.request import ON_LATE, Late
from agent_sdk.server.access import Access, Address, Tls

EXAMPLES: Final = """\b
examples:
  hope-agent serve --models detector.onnx,words.onnx
  hope-agent serve --models detector.onnx,words.onnx --spread --policy least_slack --in-flight 2
  hope-agent serve --models eyes=detector.onnx --listen 0.0.0.0:8000 --tokens tokens.txt \\
                   --tls-cert cert.pem --tls-key key.pem
"""
MIB: Final = 2**20


@click.command(epilog=EXAMPLES)
@click.option("--models", default="", metavar="[NAME=]FILE[@RATE],...", help="networks; files, or names of the zoo")
@click.option("--listen", default="127.0.0.1:8000", show_default=True, metavar="HOST:PORT", help="HTTP; port 0: any")
@click.option("--grpc", default="127.0.0.1:8001", show_default=True, metavar="HOST:PORT|off", help="gRPC")
@click.option("--tokens", type=click.Path(path_type=Path), metavar="FILE", help="a token a line: who may call")
@click.option("--tls-cert", type=click.Path(path_type=Path), metavar="FILE", help="certificate in PEM")
@click.option("--tls-key", type=click.Path(path_type=Path), metavar="FILE", help="its key in PEM")
@click.option("--lend", is_flag=True, help="lend this machine's processors to agents that hold a token")
@click.option(
    "--requests", type=click.IntRange(1, 65536), default=256, show_default=True, metavar="N", help="under way at once"
)
@click.option(
    "--memory", type=click.IntRange(16), metavar="MIB", help="of requests at once (default: half of what is free)"
)
@click.option(
    "--in-flight", type=click.IntRange(1, 64), default=1, show_default=True, metavar="N", help="runs of each network"
)
@click.option("--spread", is_flag=True, help="ready on one core, on two, on all: the policy says how many a run gets")
@click.option("--policy", type=click.Choice(POLICIES), default=DEFAULT, show_default=True, help="who runs next")
@click.option(
    "--on-late",
    type=click.Choice(ON_LATE),
    default=ON_LATE[0],
    show_default=True,
    help="what becomes of a request that would miss its timeout",
)
@click.option(
    "--grace", type=click.FloatRange(0, 3600), default=30.0, show_default=True, metavar="S", help="seconds to end in"
)
@options.planner
@options.soc
@options.processors
@options.precision
def serve(
    *,
    models: str,
    listen: str,
    grpc: str,
    tokens: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    lend: bool,
    requests: int,
    memory: int | None,
    in_flight: int,
    spread: bool,
    policy: str,
    on_late: Late,
    grace: float,
    planner: str | None,
    soc: str | None,
    processors: str | None,
    precision: str,
) -> int:
    """Serve networks to other programs until a signal asks to stop; then answer what is under way, and end."""
    try:
        from agent_sdk.server.lending import Lending
        from agent_sdk.server.models import Served
        from agent_sdk.server.serving import Server, Settings
    except ModuleNotFoundError as error:
        raise InputError(f"{error}; serve needs its extra: pip install 'hope-inference[serve]'") from error
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key are given together")
    wanted = [_named(one) for one in models.split(",") if one.strip()]
    if not wanted and not lend:
        raise click.UsageError("say what to serve: --models FILE,..., or --lend")
    every_ms = [period_ms for _, _, period_ms in wanted if period_ms is not None]
    if POLICIES[policy].joint and len(every_ms) != max(len(wanted), 2):
        raise click.UsageError(
            f"--policy {policy} follows one plan of networks whose rates are known: give two or more as FILE@30fps or "
            f"FILE@100ms; {DEFAULT} needs no plan"
        )
    if every_ms and not POLICIES[policy].joint:
        raise click.UsageError("rates of networks, as in FILE@30fps, are followed by --policy planned alone")
    settings = Settings(
        http=Address.parsed(listen),
        grpc=None if grpc == "off" else Address.parsed(grpc),
        memory=memory * MIB if memory else available_bytes() // 2,
        requests=requests,
        tls=Tls(tls_cert, tls_key) if tls_cert and tls_key else None,
        grace_s=grace,
    )
    access = Access.read(tokens)
    for option, address in (("--listen", settings.http), ("--grpc", settings.grpc)):
        if address is not None:
            access.refuse_open(address)
            refuse_taken(option, address)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a client takes one
    with ExitStack() as closing:
        agent = closing.enter_context(
            Agent(planner, soc=soc, processors=processors, precision=precision, policy=policy, queued=requests)
        )
        served, sessions, notes = [], [], list[str]()
        with TerminalProgress(Console(stderr=True)) as progress:
            for name, source, _ in wanted:
                progress(Progress(f"loading {source}"))
                session = closing.enter_context(agent.load(source, in_flight=in_flight))
                served.append(Served.of_plans(name or session.name, session.plans, agent.jobs, on_late))
                sessions.append(session)
                if spread:
                    progress(Progress(f"making {source} ready on core groups"))
                    agent.spread(session, in_flight=in_flight)
            if every_ms:
                progress(Progress("planning all networks together"))
                joint = closing.enter_context(agent.together(*sessions, every_ms=every_ms))
                agent.jobs.use(agent.jobs.policy, joint.parts)
                notes = joint.notes
        for note in notes:
            click.echo(f"hope-agent: {note}", err=True)
        lending = closing.enter_context(Lending(agent, settings.memory)) if lend else None
        wait = closing.enter_context(asked_to_end())  # before it serves there is nothing to be answered first
        server = closing.enter_context(Server(served, access, settings, lending))
        shown = ", ".join([*(one.name for one in served), *(["its processors"] if lend else [])])
        for url in server.urls:
            click.echo(f"hope-agent serves {shown} at {url}", err=True)
        wait()
        click.echo("hope-agent: ending once what is under way is answered", err=True)
        server.close()
        if server.hangs:
            # What it computes on cannot be closed under it, and goes with the process.
            click.echo(f"hope-agent: what was not answered within {grace:g} s is given up", err=True)
            closing.pop_all()
            return 1
    return 0


def _named(given: str) -> tuple[str, str, float | None]:
    """A name, a network and its period in milliseconds, of which the name and the period may be missing."""
    name, _, source = given.strip().rpartition("=")
    return (name, source, None) if Path(source).exists() else (name, *read_rate(source))


def refuse_taken(option: str, address: Address) -> None:
    """Raise InputError for an address that cannot be listened on, before anything is measured."""
    try:
        address.listening().close()
    except InputError as error:
        raise InputError(f"{option}: {error}; give {option} another HOST:PORT; port 0 takes any that is free") from None


@contextmanager
def asked_to_end() -> Iterator[Callable[[], object]]:
    """What waits until SIGTERM or SIGINT has come; afterwards they do what they did before.

    NOTE: neither an event nor a queue: a signal that interrupts another thread, or that comes just before this one
    sleeps, wakes nobody who waits for a lock. A byte in a socket is there whenever it is looked for.
    """
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
        earlier = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield lambda: reader.recv(1)
        finally:
            signal.set_wakeup_fd(earlier)
            for number, handler in before.items():
                signal.signal(number, handler)
