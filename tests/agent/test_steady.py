"""The witness: it ends with its block, tells a slowed core, and repeats what was disturbed, but not for ever."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from agent_sdk.steady import SLOW, Witness
from tests.agent.cores import GONE


def test_it_looks_at_every_core_and_leaves_no_thread() -> None:
    """Each core gets a time of its own, and the threads end with the block."""
    before = threading.active_count()
    with Witness() as witness:
        assert witness.slowness() >= 1.0
        assert set(witness.shortest_us) == set(witness.cores)
        assert all(0 < us < 1e6 for us in witness.shortest_us.values())
    assert threading.active_count() == before


def test_ctrl_c_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads end with a block that Ctrl-C ends, also where that comes while the block is entered."""
    monkeypatch.setattr(Witness, "slowness", lambda self, seconds=0.0: os.kill(os.getpid(), signal.SIGINT))
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt), Witness():
        pass
    assert threading.active_count() == before


def test_ctrl_c_between_two_threads_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have been started end, and nobody waits for those that have not."""
    start = threading.Thread.start

    def start_and_press(thread: threading.Thread) -> None:
        start(thread)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(threading.Thread, "start", start_and_press)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt), Witness():
        pass
    assert threading.active_count() == before


@pytest.mark.parametrize(("looks", "calls"), [((1, 1), 1), ((9, 1, 1), 1), ((1, 9, 1, 1), 2), ((1, 9, 9, 1, 1), 2)])
def test_what_was_disturbed_is_repeated(looks: tuple[float, ...], calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call waits for steady cores, and counts only if they were steady afterwards as well."""
    seen = iter(looks)
    done: list[int] = []
    with Witness() as witness:
        monkeypatch.setattr(witness, "slowness", lambda seconds=0.0: next(seen))
        assert witness.steadily(lambda: done.append(1), time.monotonic() + 60)[1] is True
    assert len(done) == calls
    assert next(seen, None) is None


def test_it_gives_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the cores are never steady, the call is made once all the same, and that is said."""
    done: list[int] = []
    with Witness() as witness:
        monkeypatch.setattr(witness, "slowness", lambda seconds=0.0: 2 * SLOW)
        assert witness.steadily(lambda: done.append(1), 0.0)[1] is False
    assert done == [1]


def test_a_core_that_is_gone_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core may go offline between two measurements; whoever looks at it still gets an answer."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, GONE})
    with Witness() as witness:
        assert witness.cores == [0, GONE]
        assert witness.slowness() >= 1.0
