"""Hosts as network namespaces with shares of a core, a link from the device to each of them, and what runs there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DEVICE: Final = "device"
HOSTS: Final = {"edge": "edge", "edge2": "edge", "edge3": "edge", "edge4": "edge", "cloud": "cloud"}
"""By name, and what SoC each has."""
LENT: Final = "ort@1"
"""What hosts lend: all have one core of this machine, and the device the other one."""
PERIOD_US: Final = 10_000
"""Of the quotas: the kernel's usual tenth of a second would be seen in every run."""
FULL: Final = -1
"""No quota."""
FIRST: Final = 2**18
"""The groups' weight beside all else that runs on this machine: niceness counts only within a group."""
PORT: Final = 8000
TOKEN: Final = "a-token-for-the-tiers"
CGROUP: Final = Path("/sys/fs/cgroup/cpu")


@dataclass(frozen=True)
class Scene:
    """How fast hosts and links are while runs are timed: Mbps from the device to each host, and shares of a core."""

    mbps: Mapping[str, float]
    shares: Mapping[str, float]


def possible() -> bool:
    """Whether this machine lets namespaces and quotas be made."""
    return os.geteuid() == 0 and (CGROUP / "cpu.cfs_quota_us").exists()


def space(host: str) -> str:
    """The network namespace of a host."""
    return f"hope-{host}"


def ran(*command: str) -> None:
    """Run a command of the system. Raises CalledProcessError."""
    subprocess.run(command, check=True, capture_output=True)


def inside(host: str, *command: str) -> list[str]:
    """A command that runs in a host's namespace, on its share of a core."""
    share = f'echo $$ > {CGROUP / space(host) / "cgroup.procs"} && exec "$@"'
    return ["sh", "-c", share, "sh", "nsenter", f"--net=/run/netns/{space(host)}", *command]  # quotas stay in reach


def slow(scene: Scene | None) -> None:
    """Give hosts their shares, and links their bandwidths both ways; None: as fast as the machine is."""
    for host in (DEVICE, *HOSTS):
        share = scene.shares.get(host) if scene else None
        quota = FULL if share is None else round(share * PERIOD_US)
        (CGROUP / space(host) / "cpu.cfs_quota_us").write_text(str(quota))
    for host in HOSTS:
        for where, device in ((DEVICE, f"to-{host}"), (host, "to-device")):
            in_space = ["ip", "netns", "exec", space(where), "tc", "qdisc"]
            subprocess.run([*in_space, "del", "dev", device, "root"], capture_output=True, check=False)
            if scene and host in scene.mbps:
                mbps = scene.mbps[host]
                rate, burst = f"{mbps * 1e3:.0f}kbit", f"{max(32, round(mbps / 8))}kb"
                ran(*in_space, "add", "dev", device, "root", "tbf", "rate", rate, "burst", burst, "latency", "400ms")


@contextmanager
def slowed(scene: Scene) -> Iterator[None]:
    """The links' bandwidths and the hosts' speeds, for the block."""
    slow(scene)
    try:
        yield
    finally:
        slow(None)


def remove(group: Path) -> None:
    """Remove a group of processes once they have ended, which takes a moment. Raises OSError where they do not."""
    end = time.monotonic() + 10
    while (group / "cgroup.procs").read_text() and time.monotonic() < end:
        time.sleep(0.1)
    group.rmdir()


@contextmanager
def spaces() -> Iterator[None]:
    """The device's namespace and the hosts', groups for their quotas, and links, for the block."""
    with ExitStack() as ending:
        for host in (DEVICE, *HOSTS):
            ran("ip", "netns", "add", space(host))
            ending.callback(ran, "ip", "netns", "del", space(host))
            group = CGROUP / space(host)
            group.mkdir(exist_ok=True)
            ending.callback(remove, group)
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.shares").write_text(str(FIRST))
            ran("ip", "-n", space(host), "link", "set", "lo", "up")
        for host in HOSTS:
            ends = (DEVICE, f"to-{host}", _address(host, 1)), (host, "to-device", _address(host, 2))
            names = ["name", f"to-{host}", "netns", space(DEVICE)]
            ran("ip", "link", "add", *names, "type", "veth", "peer", "name", "to-device", "netns", space(host))
            for where, device, address in ends:
                ran("ip", "-n", space(where), "addr", "add", f"{address}/24", "dev", device)
                ran("ip", "-n", space(where), "link", "set", device, "up")
        yield


def _address(host: str, end: int) -> str:
    return f"10.77.{1 + [*HOSTS].index(host)}.{end}"


@contextmanager
def lending(host: str, folder: Path) -> Iterator[None]:
    """A server that lends its core. Raises SystemExit where it does not start."""
    tokens = folder / "tokens"
    tokens.write_text(TOKEN)
    command = [sys.executable, "-m", "agent_sdk.cli", "serve", "--lend", "--grpc", "off", "--soc", HOSTS[host]]
    command += ["--listen", f"{_address(host, 2)}:{PORT}", "--tokens", str(tokens), "--processors", LENT]
    environment = {**os.environ, "HOPE_CACHE_DIR": str(folder / host)}
    with subprocess.Popen(inside(host, *command), stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            said = ""
            while " at http" not in said:
                line = process.stderr.readline()
                said += line
                if not line:
                    raise SystemExit(f"namespaces: host {host} does not start: {said}")
            yield
        finally:
            process.terminate()
            process.wait(30)


def named(folder: Path, hosts: Collection[str], precision: str) -> Path:
    """A file that names hosts, and whether float32 may cross to them as float16."""
    file = folder / f"{'-'.join(hosts)}-{precision}.toml"
    file.write_text(
        "".join(
            f'[{host}]\naddress = "http://{_address(host, 2)}:{PORT}"\ntoken = "{TOKEN}"\n'
            f'plain = true\nprecision = "{precision}"\n'
            for host in hosts
        )
    )
    return file
