"""Tensors that stay here between requests: what they may take, and when they go."""

from __future__ import annotations

import json

import numpy as np
import pytest

from agent_sdk.errors import RefusedError
from agent_sdk.model import Port
from agent_sdk.server.admission import Admission, Room
from agent_sdk.server.held import Held
from agent_sdk.server.models import Served
from agent_sdk.server.wire import Form

SERVED = Served("net", [Port("x", "tensor(float)", (4,))], [Port("y", "tensor(float)", (4,))], lambda *_: {})


def test_the_end_of_a_connection_takes_only_what_came_over_it_last() -> None:
    """A tensor that came anew over another connection stays, and the bytes are counted as they are."""
    held, first, second = Held(1000), object(), object()
    held.put("a", np.zeros(10, np.uint8), first)
    held.put("b", np.zeros(20, np.uint8), first)
    held.put("b", np.zeros(40, np.uint8), second)
    held.release(first)
    assert (held.count, held.size, held.get("b").nbytes) == (1, 40, 40)
    with pytest.raises(RefusedError, match="'a'"):
        held.get("a")
    with pytest.raises(RefusedError, match="full"):
        held.put("c", np.zeros(961, np.uint8), first)
    held.release(second)
    assert (held.count, held.size) == (0, 0)


def test_texts_do_not_stay() -> None:
    """Nobody could say how much memory they take."""
    held = Held(1000)
    with pytest.raises(RefusedError, match="texts"):
        held.put("a", np.array(["x" * 10_000], object), object())
    assert (held.count, held.size) == (0, 0)


def test_a_tensor_that_stays_does_not_keep_the_request_that_brought_it() -> None:
    """Beside what is counted no JSON stays, however long it was."""
    described = {"name": "x", "datatype": "FP32", "shape": [4], "parameters": {"binary_data_size": 16, "hold": "a"}}
    head = json.dumps({"inputs": [described]}).encode().ljust(2**16)
    body = memoryview(np.frombuffer(head + np.arange(4, dtype=np.float32).tobytes(), np.uint8))
    held = Held(1000)
    with Room(Admission(memory=2**24, requests=1)) as room:
        Form.read(SERVED, body[: len(head)], room).feed(body[len(head) :], held, object())
    stays = held.get("a")
    np.testing.assert_array_equal(stays, np.arange(4, dtype=np.float32))
    assert stays.base is None
