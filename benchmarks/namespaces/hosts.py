"""Hosts as network namespaces with shares of a core, links from the device to them, and what runs there.

Edges are behind one interface of the device's, as behind a radio: a bridge in a namespace of its own, with a port for
each. The cloud has a link of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DEVICE: Final = "device"
HOSTS: Final = {"edge": "edge", "edge2": "edge", "edge3": "edge", "edge4": "edge", "cloud": "cloud"}
"""By name, and what SoC each has."""
EDGES: Final = tuple(host for host, soc in HOSTS.items() if soc == "edge")
AIR: Final = "air"
"""What the edges share: the namespace of the bridge, the device's link to it, and what that is called in plans."""
LENT: Final = "ort@1"
"""What hosts lend: all have one core of this machine, and the device the other one."""
PERIOD_US: Final = 10_000
"""Of the quotas: the kernel's usual tenth of a second would be seen in every run."""
WIRES: Final = ((DEVICE, AIR), (DEVICE, "cloud"), *((AIR, edge) for edge in EDGES))
"""Links: who is at either end; the second one's name is the link's."""
FULL: Final = -1
"""No quota."""
FIRST: Final = 2**18
"""The groups' weight beside all else that runs on this machine: niceness counts only within a group."""
PORT: Final = 8000
TOKEN: Final = "a-token-for-the-tiers"
CGROUP: Final = Path("/sys/fs/cgroup/cpu")


@dataclass(frozen=True)
class Scene:
    """How fast hosts and links are while runs are timed.

    Attributes:
        mbps: of the device's links to ``AIR`` and the cloud, and of edges' own behind ``AIR``; what is not named is as
            fast as the machine.
        shares: of a core, of the device and of each host that takes part.
    """

    mbps: Mapping[str, float]
    shares: Mapping[str, float]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Those that take part, beside the device."""
        return tuple(host for host in self.shares if host in HOSTS)


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
    for one, other in WIRES:
        for where, device in ((one, f"to-{other}"), (other, f"to-{one}")):
            in_space = ["ip", "netns", "exec", space(where), "tc", "qdisc"]
            subprocess.run([*in_space, "del", "dev", device, "root"], capture_output=True, check=False)
            if scene and other in scene.mbps:
                mbps = scene.mbps[other]
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
        ran("ip", "netns", "add", space(AIR))
        ending.callback(ran, "ip", "netns", "del", space(AIR))
        ran("ip", "-n", space(AIR), "link", "add", "bridge", "type", "bridge")
        ran("ip", "-n", space(AIR), "link", "set", "bridge", "up")
        for one, other in WIRES:
            names = ["name", f"to-{other}", "netns", space(one)]
            ran("ip", "link", "add", *names, "type", "veth", "peer", "name", f"to-{one}", "netns", space(other))
            for where, device in ((one, f"to-{other}"), (other, f"to-{one}")):
                if where == AIR:
                    ran("ip", "-n", space(AIR), "link", "set", device, "master", "bridge")
                else:
                    address = _address(where, "cloud" in (one, other))
                    ran("ip", "-n", space(where), "addr", "add", f"{address}/24", "dev", device)
                ran("ip", "-n", space(where), "link", "set", device, "up")
        yield


def _address(host: str, backbone: bool) -> str:
    """Of a host, behind the air or on the backbone."""
    return f"10.77.{1 + backbone}.{1 + [DEVICE, *HOSTS].index(host)}"


@contextmanager
def lending(host: str, folder: Path) -> Iterator[None]:
    """A server that lends its core. Raises SystemExit where it does not start."""
    tokens = folder / "tokens"
    tokens.write_text(TOKEN)
    command = [sys.executable, "-m", "agent_sdk.cli", "serve", "--lend", "--grpc", "off", "--soc", HOSTS[host]]
    command += [
        "--listen",
        f"{_address(host, host not in EDGES)}:{PORT}",
        "--tokens",
        str(tokens),
        "--processors",
        LENT,
    ]
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


def named(folder: Path, scene: Scene, precision: str) -> Path:
    """A file that names a scene's hosts, and whether float32 may cross to them as float16."""
    file = folder / "hosts.toml"
    shared = f'link = "{AIR}"\n' if AIR in scene.mbps else ""
    file.write_text(
        "".join(
            f'[{host}]\naddress = "http://{_address(host, host not in EDGES)}:{PORT}"\ntoken = "{TOKEN}"\n'
            f'plain = true\nprecision = "{precision}"\n' + (shared if host in EDGES else "")
            for host in scene.hosts
        )
    )
    return file
