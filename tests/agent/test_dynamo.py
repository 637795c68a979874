"""``torch.compile(module, backend="hope")``: torch's own answer, by a plan or by torch."""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from agent_sdk import Agent
from tests.agent.test_session_shapes import until

torch = pytest.importorskip("torch")
dynamo = pytest.importorskip("agent_sdk.dynamo")

GROUP = "torch_dynamo_backends"
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
SAID = "torch itself computes"


class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A convolution, a norm, two branches and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.left, self.right = torch.nn.Conv2d(8, 4, 1), torch.nn.Conv2d(8, 4, 3, padding=1)
        self.last = torch.nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        """Scores, and what they were made of."""
        x = torch.relu(self.norm(self.first(x)))
        x = torch.cat([self.left(x), self.right(x)], 1)
        return self.last(x.mean((2, 3))), x.amax((2, 3))


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    """Nothing that was compiled before counts."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def compiled(agent: Agent) -> Callable[..., Any]:
    """Compile by the backend as it is registered, with the test's agent; ``.made`` holds what it made."""
    entry = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
    backend = EntryPoint("hope", entry["hope"], GROUP).load()
    assert backend is dynamo.hope

    def compile_(function: Any, **named: Any) -> Any:
        made: list[Any] = []

        def noted(*given: Any, **options: Any) -> Any:
            made.append(backend(*given, **options))
            return made[-1]

        found = torch.compile(function, backend=noted, **{"options": {"agent": agent}, **named})
        return found, made

    return compile_


def close(found: Any, right: Any) -> None:
    """Compare answers of any nesting."""
    torch.testing.assert_close(found, right, **TOLERANCE)


def test_a_plan_answers_what_torch_answers(compiled: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """Each call's answer is eager's, the first and those of the plan, also after new sizes; nothing is to be said."""
    net = Net().eval()
    fast, made = compiled(net)
    for size in (8, 12):
        for seed in range(3):
            x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(seed))
            with torch.no_grad():
                close(fast(x), net(x))
    (planned,) = made[0].sessions.values()
    until(lambda: planned.session.stats.prepared == 1)
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad(), torch.inference_mode():
        close(fast(x), net(x))
    assert sum(len(one.sessions) for one in made) >= 2
    assert planned.session.stats.answered
    assert SAID not in caplog.text


def test_gradients_are_torchs(compiled: Callable[..., Any]) -> None:
    """Without ``no_grad`` answers can be differentiated, by weights and by inputs, as eager's can."""
    net = Net().eval()
    fast, made = compiled(net)
    for _ in range(3):
        x = torch.randn(1, 3, 8, 8, requires_grad=True)
        grown = []
        for call in (fast, net):
            net.zero_grad()
            x.grad = None
            scores, tops = call(x)
            (scores.sum() + (tops**2).sum()).backward()
            grown.append([x.grad.clone(), *(one.grad.clone() for one in net.parameters())])
        close(*grown)
    assert made[0].sessions


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "as computed": lambda x: torch.relu(x),
    "turned": lambda x: (x * 2).transpose(1, 2),
    "channels last": lambda x: (x * 2).contiguous(memory_format=torch.channels_last),
    "every second one": lambda x: (x * 2)[:, 1:, ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_answers_are_laid_out_as_torchs(compiled: Callable[..., Any], layout: str) -> None:
    """Whatever the layout of the input, each call's: what comes after a graph may take a view of its answer."""
    function = LAYOUTS[layout]
    fast, made = compiled(function, dynamic=True)
    for _ in range(3):
        for x in (torch.randn(2, 3, 4, 5), torch.randn(2, 4, 5, 3).permute(0, 3, 1, 2)):
            found, right = fast(x), function(x)
            close(found, right)
            assert found.stride() == right.stride()
    assert all(one.sessions for one in made)


def test_what_has_no_gradient_has_none(compiled: Callable[..., Any]) -> None:
    """Outputs that depend on no weight, or are detached, stay arrays' to read."""
    net = torch.nn.Linear(4, 4)

    def function(x: Any) -> Any:
        return net(x), x + 1, net(x).detach() * 2

    fast, made = compiled(function)
    for _ in range(3):
        assert [one.requires_grad for one in fast(torch.randn(2, 4))] == [True, False, False]
    assert made[0].sessions


def test_a_module_changed_later_gives_its_new_answer(
    compiled: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Loaded weights, a tensor or a parameter put in another's place, and one written in place; said once."""
    x = torch.randn(1, 3, 8, 8)

    def load(net: Net) -> None:
        net.load_state_dict({name: value * 2 for name, value in net.state_dict().items()})

    def put(net: Net) -> None:
        net.last.weight.data = net.last.weight.data * 2

    def write(net: Net) -> None:
        with torch.no_grad():
            net.last.bias.add_(1)

    def replace(net: Net) -> None:
        writes = net.last.weight._version
        net.last.weight = torch.nn.Parameter(net.last.weight.data)
        with torch.no_grad():
            for _ in range(writes):
                net.last.weight.add_(1)
        assert writes == net.last.weight._version

    for change in (load, put, write, replace):
        torch._dynamo.reset()
        net = Net().eval()
        fast, made = compiled(net)
        caplog.clear()
        with torch.no_grad():
            for _ in range(2):
                before = net(x)
                close(fast(x), before)
            assert made[0].sessions
            change(net)
            assert not torch.equal(net(x)[0], before[0])
            for _ in range(2):
                close(fast(x), net(x))
        assert [SAID in record.message for record in caplog.records if record.name == "agent_sdk.dynamo"] == [True]


def writes(x: Any) -> Any:
    """Changes its input."""
    x.mul_(2)
    return x + 1


def passes(x: Any) -> Any:
    """Gives its input back, in another shape."""
    return x.view(-1), x.sum()


def draws(x: Any) -> Any:
    """Is not the same twice."""
    return torch.nn.functional.dropout(x, 0.5, training=True)


def sorts(x: Any) -> Any:
    """Has outputs that look at one another."""
    return (x + 1).chunk(2)


def hides(x: Any) -> Any:
    """Changes its input where torch does not count it."""
    x.data.mul_(2)
    return x + 1


def cuts(x: Any) -> Any:
    """Changes its input, but none that is positive."""
    return torch.nn.functional.relu(x, inplace=True) + 1


def narrows(x: Any) -> Any:
    """Gives what NumPy has no type for."""
    return (x + 1).bfloat16()


def bare(x: Any) -> Any:
    """Reads nothing that it is given."""
    return torch.arange(3) + 1


def repeats(x: Any) -> Any:
    """Gives one element in several places."""
    return (x + 1).sum(0, keepdim=True).expand(4, 6)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (repeats, "elements that share memory"),
        (writes, "changes what it is given"),
        (hides, "changes what it is given"),
        (cuts, "changes what it is given"),
        (passes, "shares memory"),
        (sorts, "shares memory"),
        (draws, "random numbers"),
        (narrows, r"an output' is a tensor of torch\.bfloat16"),
        (bare, "nothing but weights"),
    ],
)
def test_what_no_plan_can_do_torch_does(
    function: Callable[..., Any], why: str, compiled: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """In-place writes, inputs given back, random numbers, views: torch's own effects and answers, and one message."""
    caplog.set_level(logging.WARNING)
    fast, made = compiled(function)
    for sign in (1, -1, 1):
        ours, theirs = sign * torch.ones(4, 6), sign * torch.ones(4, 6)
        torch.manual_seed(1)
        found = fast(ours)
        torch.manual_seed(1)
        close(found, function(theirs))
        close(ours, theirs)
    assert not made[0].sessions
    assert caplog.text.count(SAID) == 1
    assert re.search(why, caplog.text)


def test_numbers_that_are_none_are_no_writes(compiled: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """An input that holds NaN is equal to itself, with gradients and where torch counts no writes."""
    for mode in (torch.no_grad, torch.inference_mode):
        torch._dynamo.reset()
        with mode():
            x = torch.tensor([[1.0, torch.nan], [0.0, -torch.inf]])
            fast, made = compiled(lambda x: x * 2 + 1)
            for _ in range(2):
                torch.testing.assert_close(fast(x), x * 2 + 1, equal_nan=True)
        assert made[0].sessions
    assert SAID not in caplog.text


def test_weights_of_which_torch_counts_no_writes_are_not_planned_with(
    compiled: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Made in inference mode they may change unseen: the answer is that of the new ones."""
    with torch.inference_mode():
        layer = torch.nn.Linear(3, 2)
        fast, made = compiled(layer)
        for _ in range(3):
            layer.bias.add_(1)
            x = torch.randn(4, 3)
            close(fast(x), layer(x))
    assert not made[0].sessions
    assert "inference mode" in caplog.text


def test_further_sizes_are_torchs(
    compiled: Callable[..., Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a number of sets of sizes torch answers, with one message; the first ones stay planned."""
    monkeypatch.setattr(dynamo, "KEPT", 2)
    fast, made = compiled(lambda x: torch.relu(x) * 2, dynamic=True)
    for _ in range(2):
        for size in (2, 3, 4, 5):
            x = torch.randn(size, 3)
            close(fast(x), torch.relu(x) * 2)
    assert [len(one.sessions) for one in made] == [2]
    assert not made[0].why
    assert caplog.text.count(SAID) == 1


def test_an_export_that_is_wrong_is_not_believed(
    compiled: Callable[..., Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is exported is held against torch's answer, in its values and in its types."""
    right = dynamo.Graph.forward

    def changed(change: Callable[..., Any]) -> Callable[..., Any]:
        return lambda own, *given: [change(one) for one in right(own, *given)]

    for change, why in ((lambda y: y + 0.01, "off by"), (lambda y: y.double(), "other types")):
        monkeypatch.setattr(dynamo.Graph, "forward", changed(change))
        fast, made = compiled(lambda x: torch.tanh(x) * 2)
        for _ in range(2):
            x = torch.randn(4, 3)
            close(fast(x), torch.tanh(x) * 2)
        assert not made[0].sessions
        assert why in made[0].why
    assert caplog.text.count(SAID) == 2


def test_when_the_agent_is_closed_torch_answers(
    compiled: Callable[..., Any], caplog: pytest.LogCaptureFixture, agent: Agent
) -> None:
    """A function that was compiled outlives it."""
    fast, made = compiled(lambda x: torch.relu(x) + 1)
    x = torch.randn(2, 3)
    close(fast(x), torch.relu(x) + 1)
    (planned,) = made[0].sessions.values()
    assert planned.session.wait(300)
    agent.close()
    for _ in range(2):
        close(fast(x), torch.relu(x) + 1)
    assert [made[0].why in record.message for record in caplog.records if SAID in record.message] == [True]


@pytest.mark.parametrize("half", [False, True])
def test_on_a_device_the_first_call_plans(
    compiled: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    agent_apart: Agent,
    caplog: pytest.LogCaptureFixture,
    half: bool,
) -> None:
    """Nobody on the host stands in for the plan, of whichever type the numbers are; without one it is torch's."""
    monkeypatch.setattr(dynamo, "CPU", "no device of torch's")
    kind = torch.float16 if half else torch.float32
    net, x = Net().eval().to(kind), torch.randn(1, 3, 8, 8).to(kind)
    within = {"rtol": 2e-2, "atol": 2e-2} if half else {}
    fast, made = compiled(net, options={"agent": agent_apart})
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x), net(x), **within)
        (planned,) = made[0].sessions.values()
        assert planned.session.stats.answered.keys() == {"plan"}
        monkeypatch.setattr(dynamo.Session, "plan", None)
        wider = torch.cat([x, x])
        torch.testing.assert_close(fast(wider), net(wider), **within)
    assert not made[-1].sessions
    assert caplog.text.count(SAID) == 1


def test_a_net_in_training_is_torchs(compiled: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """Batch norms learn as in eager mode."""
    ours, theirs = Net().train(), Net().train()
    fast, _ = compiled(ours)
    for _ in range(3):
        x = torch.randn(2, 3, 8, 8)
        close(fast(x), theirs(x))
    close(dict(ours.state_dict()), dict(theirs.state_dict()))
    assert caplog.text.count(SAID) == 1


def test_control_flow_that_looks_at_data_is_followed(compiled: Callable[..., Any]) -> None:
    """Both branches give torch's answer."""

    def function(x: Any) -> Any:
        x = torch.tanh(x) * 3
        return torch.relu(x) + 1 if x.sum() > 0 else torch.exp(x) - 1

    fast, _ = compiled(function)
    for sign in (1, -1, 1, -1):
        x = sign * torch.rand(3, 5)
        close(fast(x), function(x))


def test_another_device_is_torchs(compiled: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """Tensors without memory: torch says their shapes, and a message why nothing is planned."""
    fast, made = compiled(lambda x: torch.relu(x) + 1)
    assert fast(torch.empty(2, 3, device="meta")).shape == (2, 3)
    assert not made[0].sessions
    assert caplog.text.count(SAID) == 1


def test_tensors_of_a_device_without_plans_are_torchs(
    compiled: Callable[..., Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be copied to another one at each call."""
    monkeypatch.setattr(dynamo, "CPU", "cuda:7")
    fast, made = compiled(lambda x: torch.relu(x) + 1)
    for _ in range(2):
        x = torch.randn(2, 3)
        close(fast(x), torch.relu(x) + 1)
    assert not made[0].sessions
    assert [made[0].why in record.message for record in caplog.records if SAID in record.message] == [True]
    assert "its tensors are on cpu; plans are made for those on one of cuda:7" in made[0].why


def test_options_that_there_are_not_are_refused() -> None:
    """By name."""
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    for named, said in (({"options": {"agents": 1}}, "agents"), ({"mode": "max-autotune"}, "max-autotune")):
        with pytest.raises(dynamo.InputError, match=said):
            dynamo.hope(graph, [], **named)
