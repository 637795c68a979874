"""Tensors of torch's in a session: read and made where they stand, on the host and in a memory of torch's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from agent_sdk import Agent
from agent_sdk.errors import HopeError, InputError
from agent_sdk.journey.verify import relative_error
from agent_sdk.model.bounds import Guard
from agent_sdk.session import Session
from agent_sdk.tensors import TorchTensor, as_tensors, with_tensors
from tests.agent.models import BRANCHING, expected
from tests.agent.test_session_shapes import until

torch = pytest.importorskip("torch")


class Net(torch.nn.Module):
    """A convolution, and what a table says of some words; its second output is an input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.words = torch.nn.Conv2d(3, 5, 3), torch.nn.Embedding(7, 5)

    def forward(self, image: Any, words: Any) -> Any:
        """Scores."""
        return torch.relu(self.first(image)).mean((2, 3)) + self.words(words).sum(1)


IMAGE, WORDS = torch.randn(1, 3, 8, 8), torch.tensor([[1, 6, 2]])


@pytest.fixture
def apart(agent_apart: Agent) -> Iterator[Session]:
    """A network planned there."""
    with agent_apart.load(Net().eval(), inputs=(IMAGE, WORDS), background=False) as session:
        assert session.latest.executor.program.processors_used == ("cpu",)
        yield session


def by_plans(session: Session) -> int:
    """How many runs the plan has answered, or a rival on the same processor."""
    return sum(count for name, count in session.stats.answered.items() if not name.startswith("whole:"))


def right(image: Any, words: Any) -> Any:
    """What torch says."""
    with torch.no_grad():
        return Net().eval()(image, words)


def test_nothing_is_a_tensor_while_another_thread_imports_torch(
    returning_agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module stands in ``sys.modules`` as soon as its import begins, and has nothing in it then."""
    feed, wanted = expected(BRANCHING, seed=1)
    for name in ("torch", "torch.nn"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with returning_agent.load(BRANCHING, background=False) as session:
        assert relative_error(session.run(feed), wanted) < 1e-5


def test_a_session_takes_and_gives_tensors(agent: Agent) -> None:
    """By name and as a list, strided, with and without gradients, before and after the plan is there."""
    with agent.load(Net().eval(), inputs=(IMAGE, WORDS)) as session:
        for _ in range(2):
            for image in (IMAGE, IMAGE.clone(memory_format=torch.channels_last), IMAGE.clone().requires_grad_()):
                (found,) = session.run(None, {"image": image, "words": WORDS})
                torch.testing.assert_close(found, right(image.detach(), WORDS), rtol=1e-4, atol=1e-5)
            by_name = session.run({"image": IMAGE, "words": WORDS.numpy()})
            assert all(isinstance(one, torch.Tensor) for one in by_name.values())
            arrays = session.run({"image": IMAGE.numpy(), "words": WORDS.numpy()})
            assert all(isinstance(one, np.ndarray) for one in arrays.values())
            until(lambda: session.stats.prepared == 1)


def test_tensors_stay_in_the_memory_of_a_plan(apart: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a plan computes in the memory in which its inputs stand, nothing passes the host, in either direction."""
    place = apart.latest.executor.program.places["cpu"]
    for way in ("to_host", "from_host"):
        monkeypatch.setattr(place, way, lambda *_: pytest.fail("a tensor passes the host"))
    monkeypatch.setattr(TorchTensor, "array", property(lambda one: one.tensor.numpy() if one.name == "words" else None))
    answers = []
    for scale in (1, 2):
        (found,) = apart.run(None, {"image": IMAGE * scale, "words": WORDS})
        answers.append((found, right(IMAGE * scale, WORDS)))
    for found, wanted in answers:  # the second run wrote into no answer of the first
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert by_plans(apart) == 2


def test_arrays_beside_tensors_are_brought(apart: Session) -> None:
    """One input as an array and one as a tensor, and arrays alone, give the same answers as tensors."""
    words = {"words": WORDS}
    for feed in ({"image": IMAGE.numpy(), **words}, {"image": IMAGE, "words": WORDS.numpy()}):
        (found,) = apart.run(feed).values()
        torch.testing.assert_close(found, right(IMAGE, WORDS), rtol=1e-4, atol=1e-5)
    (array,) = apart.run({"image": IMAGE.numpy(), "words": WORDS.numpy()}).values()
    assert isinstance(array, np.ndarray)
    np.testing.assert_allclose(array, right(IMAGE, WORDS).numpy(), rtol=1e-4, atol=1e-5)


def test_odd_numbers_in_tensors_are_seen(apart: Session) -> None:
    """A number that runtimes may treat differently is seen where it stands, and the whole network answers."""
    for times, odd in enumerate((torch.nan, torch.inf, 1e30), 1):
        image = IMAGE.clone()
        image[0, 1, 2, 3] = odd
        (found,) = apart.run(None, {"image": image, "words": WORDS})
        torch.testing.assert_close(found, right(image, WORDS), rtol=1e-4, atol=1e-5, equal_nan=True)
        assert apart.stats.answered["whole:onnxruntime"] == 2 * times - 1
        apart.run(None, {"image": IMAGE, "words": WORDS})  # the whole network has its turn until one is ordinary again
    apart.run(None, {"image": IMAGE, "words": WORDS})
    assert by_plans(apart)


def test_odd_numbers_in_what_a_plan_makes_are_seen(agent_apart: Agent) -> None:
    """Where ordinary tensors, or arrays, lead to an answer that is not, the whole network gives it."""

    class Grow(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.relu(x * 2).exp(), x + 1

    with agent_apart.load(Grow(), inputs=(torch.ones(2, 3),), background=False) as session:
        (name,) = (port.name for port in session.get_inputs())
        for given in (1.0, 200.0, 1.0, 2.0):
            x = torch.full((2, 3), given)
            for feed in (x, x.numpy()):
                grown, beside = session.run(None, {name: feed})
                np.testing.assert_allclose(np.asarray(grown), np.asarray(torch.exp(2 * x)), rtol=1e-5)
                np.testing.assert_allclose(np.asarray(beside), given + 1)
        assert by_plans(session) >= 3
        assert session.stats.answered["whole:onnxruntime"] >= 2


def test_floats_of_tensors_are_looked_at_as_those_of_arrays() -> None:
    """One among several, of any type, makes a feed odd; one without elements has none that are."""
    guard = Guard(floats=("x", "y"))
    kinds = torch.float16, torch.float32, torch.float64
    for numbers, ordinary in (([1.0, -2.0], True), ([1.0, torch.nan], False), ([-torch.inf], False), ([], True)):
        for kind, other in product(kinds, kinds):
            given = torch.tensor(numbers, dtype=kind), torch.ones(3, dtype=other)
            for feed in (given, given[::-1]):
                named = {name: TorchTensor(name, one) for name, one in zip("xy", feed, strict=True)}
                assert guard.finite(named) == ordinary


def test_floats_that_are_given_as_no_numbers_are_not_ordinary() -> None:
    """None in a list becomes NaN, and text may: a network computes with that, so it is looked at as that."""
    guard = Guard(floats=("x",))
    assert guard.finite({"x": [1.0, 2]})
    assert guard.finite({"other": [None]})
    for given in ([None], [1.0, None], ["nan"], [["inf"]], [torch.nan], np.array([None])):
        assert not guard.finite({"x": given})


def test_tensors_that_do_not_fit_are_refused_as_arrays_are(apart: Session) -> None:
    """In shape, in element type and for an index that lies behind its table, by the same message; no plan runs."""
    for words in (torch.tensor([[1, 7, 2]]), np.array([[1, 7, 2]])):
        with pytest.raises(HopeError, match="indices element out of data bounds"):
            apart.run(None, {"image": IMAGE, "words": words})
        assert not any("fail" in note for note in apart.notes)  # a GPU would be lost to the process
    for image in (IMAGE[:, :2], IMAGE.double()):
        said = []
        for given in (image, image.numpy()):
            with pytest.raises(InputError) as told:
                apart.run(None, {"image": given, "words": WORDS})
            said.append(str(told.value))
        assert said[0] == said[1]
    assert not apart.stats.answered


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (torch.zeros(2, dtype=torch.bfloat16), r"'image' is a tensor of torch\.bfloat16"),
        (torch.empty(2, device="meta"), "on meta"),
        (torch.eye(2).to_sparse(), r"torch\.sparse_coo"),
    ],
)
def test_what_no_array_can_hold_is_refused(tensor: Any, said: str) -> None:
    """By the input's name, its type, layout and device."""
    with pytest.raises(InputError, match=said):
        with_tensors({"image": tensor})


def test_tensors_on_the_host_are_read_where_they_stand() -> None:
    """No byte is copied at the door, neither in nor out; without tensors a feed stays as it is."""
    feed, device = with_tensors({"x": IMAGE, "n": np.ones(2)})
    assert np.asarray(feed["x"]).ctypes.data == IMAGE.data_ptr()
    assert as_tensors({"x": feed["x"].array}, device)["x"].data_ptr() == IMAGE.data_ptr()
    assert with_tensors({"n": 1}) == ({"n": 1}, None)
