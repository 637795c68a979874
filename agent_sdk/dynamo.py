"""``torch.compile(module, backend="hope")``: graphs that torch's compiler hands over are planned.

A graph's first call at any sizes is torch's own; its answer judges ours, and says how ours are laid out. What cannot be
planned stays torch's, and one message says why: a graph that changes what it is given, draws random numbers, gives its
own inputs back, or is not of one device; one whose weights changed after it was compiled. Where gradients are wanted
the backward pass is torch's, which computes the graph once more for it.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, is_not
from typing import Any, Final

import torch
from torch import Tensor

from agent_sdk.agent import Agent
from agent_sdk.engine.turn import Turn
from agent_sdk.errors import HopeError, InputError, UnplannableError, WrongOutput
from agent_sdk.journey.rounding import FLOAT32, STEP
from agent_sdk.journey.verify import relative_error
from agent_sdk.session import Session
from agent_sdk.shared import AGENTS, close_behind
from agent_sdk.tensors import TorchTensor, as_tensors, with_tensors
from hope_schema import HOST

KEPT: Final = 8
"""Sets of sizes for which a graph has a session, the first ones; at further ones torch answers."""
HALF_STEPS: Final = 20
"""How many times the rounding of a type narrower than float32 ours may differ from torch's, beside ``FLOAT32``."""
CPU: Final = "cpu"
"""What torch calls the host's memory."""
VERSION: Final = attrgetter("_version")
"""How often torch has counted a write to a tensor."""

log = logging.getLogger(__name__)

Arguments = Sequence[Any]


def hope(
    graph: torch.fx.GraphModule,
    example_inputs: Arguments,
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Compiled:
    """The backend, as torch's compiler calls it.

    Args:
        graph: what is to be computed.
        example_inputs: what it is called with.
        options: ``agent``, whose processors compute; the process's own by default.
        mode: there are none.

    Raises InputError for options and modes that there are not.
    """
    others = set(options or {}) - {"agent"}
    if others or mode is not None:
        raise InputError(f"the backend 'hope' has the option 'agent', and no {mode or ', '.join(sorted(others))}")
    agent = (options or {}).get("agent")
    return Compiled(graph, lambda: agent or AGENTS.get(on_cores=False))


class Compiled:
    """A graph that plans answer, or torch. May be called from any number of threads.

    Args:
        graph: from torch's compiler; weights are inputs of it like others.
        agent: gives the agent, when it is first needed.

    Attributes:
        why: why torch answers all calls; empty where it does not.
        sessions: by sizes.
    """

    def __init__(self, graph: torch.fx.GraphModule, agent: Callable[[], Agent]) -> None:
        self.why = ""
        self.sessions: dict[object, _Planned] = {}
        self._graph, self._agent = graph, agent
        self._lock, self._said = threading.Lock(), set[str]()
        self._weights, self._given = list[int](), list[int]()
        for place, node in enumerate(one for one in graph.graph.nodes if one.op == "placeholder"):
            kept = "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})
            (self._weights if kept else self._given).append(place)

    def __call__(self, *arguments: Any) -> Any:
        if self.why:
            return self._graph(*arguments)
        given = [arguments[place] for place in self._given]
        key = tuple(map(_kind, given))
        planned = self.sessions.get(key)
        if planned is None:
            return self._first(key, arguments)
        try:
            return planned(arguments)
        except HopeError as error:
            self._leave(error)
            return self._graph(*arguments)

    def _first(self, key: object, arguments: Arguments) -> Any:
        watch = _Watch(arguments)
        answer = self._graph(*arguments)
        try:
            watch.refuse(answer)
            with self._lock:
                if len(self.sessions) >= KEPT:
                    self._say(f"it is planned for {KEPT} sets of sizes, the first that came, and this is another one")
                elif key not in self.sessions and not self.why:
                    self.sessions[key] = _Planned(self._graph, arguments, answer, self._weights, self._agent())
        except HopeError as error:
            self._leave(error)
        return answer

    def _leave(self, error: HopeError) -> None:
        with self._lock:
            if not self.why:
                self.why, self.sessions = str(error), {}
                self._say(self.why)

    def _say(self, why: str) -> None:
        """Say once why torch computes; while the lock is held."""
        if why not in self._said:
            self._said.add(why)
            count = sum(node.op.startswith("call") for node in self._graph.graph.nodes)
            log.warning("torch itself computes a graph of %d calls: %s", count, why)


class _Watch:
    """What a graph may do beside giving an answer: whether it was done since this was made."""

    def __init__(self, arguments: Arguments) -> None:
        tensors = (one for one in arguments if isinstance(one, Tensor))
        self._watched = [
            one for one in tensors if one.layout is torch.strided and not one.is_meta
        ]  # others are refused
        self._stamps, self._bytes = self._counted(), [_bytes(one).clone() for one in self._watched]
        self._devices = {one.device for one in self._watched if one.is_cuda}
        self._random = self._drawn()

    def _counted(self) -> list[int]:
        """What changes with each write that torch counts."""
        return _stamps([one for one in self._watched if not one.is_inference()])

    def _drawn(self) -> list[Tensor]:
        """What changes with each random number."""
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in self._devices)]

    def refuse(self, answer: Any) -> None:
        """Raise UnplannableError where it was, or where its answer is part of what it was given, or of itself."""
        if self._counted() != self._stamps or not all(map(torch.equal, self._bytes, map(_bytes, self._watched))):
            raise UnplannableError("it changes what it is given")
        if not all(map(torch.equal, self._random, self._drawn())):
            raise UnplannableError("it draws random numbers, as in training")
        if not isinstance(answer, tuple | list) or not all(isinstance(one, Tensor) for one in answer):
            raise UnplannableError("it gives more than tensors")
        held = [one.untyped_storage().data_ptr() for one in self._watched if one.numel()]
        for one in answer:
            TorchTensor("an output", one)
            if one.numel() and one.untyped_storage().data_ptr() in held:
                raise UnplannableError("what it gives shares memory with what it is given, or with another output")
            if any(size > 1 and not step for size, step in zip(one.shape, one.stride(), strict=True)):
                raise UnplannableError("what it gives has elements that share memory")
            held.append(one.untyped_storage().data_ptr())


def _kind(argument: Any) -> object:
    """What a plan depends on of an argument, and how torch lays out what it makes of it: not a tensor's numbers."""
    if not isinstance(argument, Tensor):
        return argument
    layout = argument.stride() if argument.layout is torch.strided else argument.layout
    return argument.shape, layout, argument.dtype, argument.device


def _wanted(arguments: Arguments) -> bool:
    """Whether gradients are."""
    return torch.is_grad_enabled() and any(isinstance(one, Tensor) and one.requires_grad for one in arguments)


def _laid_out(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """A tensor as torch lays it out, which is copied where it is not."""
    if tensor.stride() == strides:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _stamps(tensors: Sequence[Tensor]) -> list[int]:
    """What changes with the tensors' contents, unless they were made in inference mode."""
    return [*map(Tensor.data_ptr, tensors), *map(VERSION, tensors)]


def _bytes(tensor: Tensor) -> Tensor:
    """A tensor's elements, no numbers among them too, as what can be compared."""
    return tensor.detach().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)


class _Planned:
    """A graph at one set of sizes, with the weights that it has now. Raises HopeError where it cannot be planned."""

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        arguments: Arguments,
        answer: Sequence[Tensor],
        weights: Sequence[int],
        agent: Agent,
    ) -> None:
        self._given = [place for place, one in enumerate(arguments) if isinstance(one, Tensor) and place not in weights]
        if not self._given:
            raise UnplannableError("it is given nothing but weights")
        devices = {str(one.device) for one in arguments if isinstance(one, Tensor)}
        own = {CPU, *(spec.memory for spec in agent.planned if spec.memory != HOST)}
        if len(devices) != 1 or not devices <= own:
            found, known = (" and ".join(sorted(names)) for names in (devices, own))
            raise UnplannableError(f"its tensors are on {found}; plans are made for those on one of {known}")
        for one in arguments:
            if isinstance(one, Tensor):
                TorchTensor("an input", one)
        self._graph = graph
        self._places = list(weights)
        self._weights: list[Tensor] = [arguments[place] for place in weights]
        if any(one.is_inference() for one in self._weights):
            raise UnplannableError("of weights made in inference mode torch does not say whether they changed")
        self._stamps = _stamps(self._weights)
        self._memory = [one.detach() for one in self._weights]  # others come to stand elsewhere while it is held
        module = Graph(graph, arguments, self._given)
        given = tuple(arguments[place].detach() for place in self._given)
        on_host = devices == {CPU}  # elsewhere, who answers before there is a plan would have all tensors copied
        self.session: Session = agent.load(module, inputs=given, background=on_host)
        self._end = weakref.finalize(self, close_behind, self.session)
        self._end.atexit = False  # the agent's own end comes then
        if not on_host and self.session.plan is None:
            raise UnplannableError("; ".join(self.session.notes) or "there is no plan of it")
        self._strides = [one.stride() for one in answer]
        self._differentiable = [one.requires_grad or not _wanted(arguments) for one in answer]
        self._names = [port.name for port in self.session.get_inputs()]
        self._made = [port.name for port in self.session.get_outputs()]
        if (len(self._names), len(self._made)) != (len(self._given), len(answer)):
            raise UnplannableError("torch exports it with other inputs or outputs")
        self._refuse_wrong(arguments, answer)

    def _changed(self, arguments: Arguments) -> bool:
        """Whether weights are no longer those that were planned with."""
        now = [arguments[place] for place in self._places]
        return any(map(is_not, now, self._weights)) or _stamps(now) != self._stamps

    def _refuse_wrong(self, arguments: Arguments, right: Sequence[Tensor]) -> None:
        """Raise WrongOutput where ours is not torch's answer."""
        with torch.no_grad():
            found = self(arguments)
        if [one.dtype for one in found] != [one.dtype for one in right]:
            raise WrongOutput("exported, it gives other types")
        ours, theirs = ({str(at): one.detach().cpu().numpy() for at, one in enumerate(own)} for own in (found, right))
        error = relative_error(ours, theirs)
        narrow = max((STEP.get(str(one.dtype).removeprefix("torch."), 0.0) for one in right), default=0.0)
        if error > FLOAT32 + HALF_STEPS * narrow:
            raise WrongOutput(f"exported, it gives another answer than torch: off by {error:.2g}")

    def __call__(self, arguments: Arguments) -> tuple[Tensor, ...]:
        """What the graph gives, by a plan. Raises what ``Session.run`` raises."""
        if not _wanted(arguments):
            return self.run(arguments)
        found: tuple[Tensor, ...] = _Differentiable.apply(self, *arguments)  # type: ignore[no-untyped-call]
        return found

    def run(self, arguments: Arguments) -> tuple[Tensor, ...]:
        """The same without gradients. Raises UnplannableError where weights have changed.

        They are looked at while a GPU computes: that takes as long as some networks.
        """
        feed, device = with_tensors(dict(zip(self._names, (arguments[place] for place in self._given), strict=True)))
        changed: list[bool] = []
        found = self.session.plans.run(feed, turn=Turn(meanwhile=lambda: changed.append(self._changed(arguments))))
        if changed[0] if changed else self._changed(arguments):
            raise UnplannableError("its weights have changed since it was compiled; compile it again to plan it")
        tensors = as_tensors(found, device)
        return tuple([_laid_out(tensors[name], own) for name, own in zip(self._made, self._strides, strict=True)])

    def constants(self, found: Sequence[Tensor]) -> list[Tensor]:
        """Of what it has given that which has no gradient."""
        pairs = zip(found, self._differentiable, strict=True)
        return [one for one, differentiable in pairs if not (differentiable and one.is_floating_point())]

    def again(self, *arguments: Any) -> Sequence[Tensor]:
        """The same by torch."""
        found: Sequence[Tensor] = self._graph(*arguments)
        return found


class Graph(torch.nn.Module):
    """A graph as a function of some of its arguments; the others are what they are now."""

    def __init__(self, graph: torch.fx.GraphModule, arguments: Arguments, given: Sequence[int]) -> None:
        super().__init__()
        self._graph, self._given = graph, given
        self._arguments = [one.detach() if isinstance(one, Tensor) else one for one in arguments]

    def forward(self, *inputs: Tensor) -> Any:
        arguments = [*self._arguments]
        for place, tensor in zip(self._given, inputs, strict=True):
            arguments[place] = tensor
        return self._graph(*arguments)


class _Differentiable(torch.autograd.Function):
    """Forward by a plan, backward by torch, which computes the graph once more for it."""

    @staticmethod
    def forward(ctx: Any, planned: _Planned, *arguments: Any) -> tuple[Tensor, ...]:
        ctx.planned = planned
        ctx.others = [None if isinstance(one, Tensor) else one for one in arguments]
        ctx.save_for_backward(*(one for one in arguments if isinstance(one, Tensor)))
        found = planned.run(arguments)
        ctx.mark_non_differentiable(*planned.constants(found))
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        arguments = [next(saved) if other is None else other for other in ctx.others]
        own = [one.detach().requires_grad_(one.requires_grad) if isinstance(one, Tensor) else one for one in arguments]
        with torch.enable_grad():
            answer = ctx.planned.again(*own)
        pairs = [(one, gradient) for one, gradient in zip(answer, gradients, strict=True) if one.requires_grad]
        wanted = [place for place, one in enumerate(own) if isinstance(one, Tensor) and one.requires_grad]
        found = torch.autograd.grad(
            [one for one, _ in pairs],
            [own[place] for place in wanted],
            [gradient for _, gradient in pairs],
            allow_unused=True,
        )
        by_place = dict(zip(wanted, found, strict=True))
        return (None, *(by_place.get(place) for place in range(len(own))))
