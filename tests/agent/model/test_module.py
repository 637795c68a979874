"""A module of torch's where a file is taken: the same answers as the module's own."""

from __future__ import annotations

from typing import Any

import pytest

from agent_sdk import Agent
from agent_sdk.errors import InputError, ModelError
from agent_sdk.journey.verify import relative_error
from agent_sdk.model.module import exported, is_module

torch = pytest.importorskip("torch")


class Two(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Two inputs, and a part that behaves otherwise while it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 4, 3)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, image: Any, scale: Any) -> Any:
        """A convolution, scaled."""
        return self.drop(torch.relu(self.first(image))) * scale


class Refusing(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Cannot be run, so it cannot be exported."""

    def forward(self, x: Any) -> Any:
        """Raises."""
        raise ValueError("not today")


def test_a_module_is_loaded_as_a_file_is(agent: Agent) -> None:
    """It and its inputs have their own names, its answer is that of inference, and its mode stays as it was."""
    torch.manual_seed(0)
    module = Two()
    module.drop.eval()
    feed = {"image": torch.randn(1, 3, 8, 8), "scale": torch.rand(1)}
    with agent.load(module, inputs=tuple(feed.values()), background=False) as session:
        assert [port.name for port in session.get_inputs()] == list(feed)
        assert session.explain().model == "Two"
        (found,) = session.run({name: value.numpy() for name, value in feed.items()}).values()
    assert (module.training, module.drop.training) == (True, False)
    with torch.no_grad():
        right = module.eval()(*feed.values()).numpy()
    assert relative_error({"y": found}, {"y": right}) < 1e-5


@pytest.mark.parametrize("made", [torch.jit.script, lambda module: torch.jit.trace(module, torch.zeros(2, 4))])
def test_a_scripted_module_is_loaded_as_well(agent: Agent, made: Any) -> None:
    """Compiled or traced by torch's older compiler: what it says is what it said before."""
    module = made(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval())
    x = torch.randn(2, 4)
    with agent.load(module, inputs=(x,)) as session:
        (name,) = (port.name for port in session.get_inputs())
        (found,) = session.run(None, {name: x})
    torch.testing.assert_close(found, module(x).detach())


def test_what_cannot_be_exported_says_why(agent: Agent) -> None:
    """A module without inputs, inputs without a module, and a module that fails."""
    with pytest.raises(InputError, match=r"give inputs=\(x, \.\.\.\)"):
        agent.load(Two())
    with pytest.raises(InputError, match=r"only to a torch\.nn\.Module"):
        agent.load("squeezenet", inputs=(torch.zeros(1),))
    with pytest.raises(ModelError, match=r"torch cannot export Refusing: .*not today"):
        exported(Refusing(), (torch.zeros(1),))
    assert not is_module("squeezenet")
