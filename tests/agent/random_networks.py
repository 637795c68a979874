"""Small random networks of all types, with inputs that are sizes, counts, axes, indices and divisors, and their feeds.

Independent of what is tested: nothing here looks at roles; every input is made together with what makes legal values.
``python -m tests.agent.random_networks FIRST COUNT CACHE`` runs some through an agent and prints a line of JSON for
each: a signal ends that process, and not the tests.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from agent_sdk import Agent
from agent_sdk.journey.verify import all_finite
from agent_sdk.model.hard import FAR, TIES, choices
from tests import CAMPAIGN
from tests.agent.haste import hasten

FLOATS = ("float32", "float64", "float16")
WHOLE = ("int64", "int32", "uint8", "int8", "int16", "uint16", "uint32", "uint64")
UNARY = ("Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Relu", "Sigmoid", "Tanh", "Exp", "Sqrt", "Erf", "Not", "Clip")
SIZED = ("TopK", "Split", "Range", "Expand", "Reshape", "Tile", "Pad", "Slice", "ConstantOfShape", "Squeeze")
SIZED += ("Unsqueeze", "ReduceSum", "CumSum", "Trilu", "Resize", "Loop")
MEASURING_S = 0.3
"""How long each network may be measured; the planner predicts the rest."""
KINDS = ("ordinary", "ordinary again", "hard")
TOLERANCE = 1e-3
"""How far floats may differ, relative to the largest value; whole numbers may not."""

Values = Callable[[np.random.Generator, str], np.ndarray]


def code(dtype: str) -> int:
    """ONNX's number of a NumPy type."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


@cache
def runs(op: str, dtypes: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], attributes: str = "") -> bool:
    """Whether ONNX Runtime loads one node of these types."""
    names = [f"i{index}" for index in range(len(dtypes))]
    node = helper.make_node(op, names, ["o"], **json.loads(attributes or "{}"))
    ends = [helper.make_tensor_value_info(*port) for port in zip(names, map(code, dtypes), shapes, strict=True)]
    graph = helper.make_graph([node], "one", ends, [onnx.ValueInfoProto(name="o")])
    try:
        session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    except Exception:  # noqa: BLE001  the runtime's own classes
        return False
    return True


def session(proto: onnx.ModelProto) -> ort.InferenceSession:
    """Plain ONNX Runtime."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


@dataclass(frozen=True)
class Tensor:
    """A tensor; ``exact`` says that every runtime has it to the bit."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    exact: bool = True


@dataclass
class Grower:
    """Grows a network; every step starts from tensors of known shape and ends in such."""

    rng: random.Random
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    inputs: dict[str, tuple[str, tuple[int, ...], Values]] = field(default_factory=dict)
    alive: list[Tensor] = field(default_factory=list)
    count: int = 0

    def fresh(self, letter: str = "t") -> str:
        """A name that nothing has."""
        self.count += 1
        return f"{letter}{self.count}"

    def node(self, op: str, reads: Sequence[str], outputs: int = 1, **attributes: Any) -> list[str]:
        """Append a node; returns its outputs."""
        made = [self.fresh() for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, list(reads), made, **attributes))
        return made

    def constant(self, value: Any) -> str:
        """Append a constant."""
        name = self.fresh("c")
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def data(self, dtype: str, shape: tuple[int, ...]) -> Tensor:
        """A new input that may hold anything."""

        def values(generator: np.random.Generator, kind: str) -> np.ndarray:
            if dtype == "bool":
                return generator.integers(0, 2, shape).astype(bool)
            if kind == "hard":
                among = [*TIES, *FAR] if dtype in FLOATS else choices(dtype)
                return generator.choice(np.asarray(among, dtype), shape)
            low = 0 if dtype.startswith("u") else -9
            drawn = generator.standard_normal(shape) if dtype in FLOATS else generator.integers(low, 10, shape)
            return np.asarray(drawn).astype(dtype)

        return self.given(dtype, shape, values)

    def given(self, dtype: str, shape: tuple[int, ...], values: Values) -> Tensor:
        """A new input with these values."""
        made = Tensor(self.fresh("x"), dtype, shape)
        self.inputs[made.name] = (dtype, shape, values)
        return made

    def role(self, *options: Any) -> str:
        """A new int64 input with one of these values, perhaps by a detour that changes nothing, or nearly."""
        shown = np.asarray(options[0], np.int64)
        shift = 0

        def values(generator: np.random.Generator, kind: str) -> np.ndarray:
            chosen = np.asarray(options[generator.integers(len(options))], np.int64)
            return (chosen - shift).reshape(made.shape).astype(made.dtype)

        detour = self.rng.choice(["none", "none", "cast", "add", "concat", "reshape", "gather"])
        if detour == "cast":
            made = self.given("int32", shown.shape, values)
            return self.node("Cast", [made.name], to=TensorProto.INT64)[0]
        if detour == "add":
            shift = 1
            made = self.given("int64", shown.shape, values)
            return self.node("Add", [made.name, self.constant(np.int64(1))])[0]
        if detour == "concat" and shown.ndim == 1 and len({tuple(np.ravel(o)[1:]) for o in options}) == 1:
            rest = self.constant(shown[1:])
            made = self.given("int64", (1,), lambda g, k: np.asarray(options[g.integers(len(options))])[:1])
            return self.node("Concat", [made.name, rest], axis=0)[0]
        if detour == "reshape":
            made = self.given("int64", (1, shown.size), values)
            return self.node("Reshape", [made.name, self.constant(np.array(shown.shape, np.int64))])[0]
        if detour == "gather" and shown.ndim == 1:
            made = self.given("int64", shown.shape, values)
            return self.node("Gather", [made.name, self.constant(np.arange(shown.size))], axis=0)[0]
        made = self.given("int64", shown.shape, values)
        return made.name

    def pick(self, *dtypes: str, rank: int | None = None, exact: bool = False) -> Tensor:
        """A tensor of one of these types, an old one or a new input."""
        known = [
            one
            for one in self.alive
            if one.dtype in dtypes and (rank is None or len(one.shape) == rank) and (one.exact or not exact)
        ]
        if known and self.rng.random() < 0.8:
            return self.rng.choice(known)
        shape = tuple(self.rng.randint(1, 5) for _ in range(self.rng.randint(1, 3) if rank is None else rank))
        made = self.data(self.rng.choice(dtypes), shape)
        self.alive.append(made)
        return made

    def keep(self, name: str, like: Tensor, **changed: Any) -> None:
        """Take in what was made."""
        self.alive.append(Tensor(name, **{"dtype": like.dtype, "shape": like.shape, "exact": like.exact, **changed}))

    def summed(self, name: str, like: Tensor, *, exact: bool = True) -> None:
        """Take in the sum of what may have any shape."""
        wide = "float64" if like.dtype == "float64" else "float32" if like.dtype in (*FLOATS, "bool") else "int64"
        as_wide = self.node("Cast", [name], to=code(wide))[0]
        total = self.node("ReduceSum", [as_wide], keepdims=0)[0]
        self.alive.append(Tensor(total, wide, (), wide == "int64" and exact and like.exact))

    # What it is grown by

    def arithmetic(self) -> None:
        """Two tensors of one type."""
        x, op = self.pick(*FLOATS, *WHOLE), self.rng.choice(["Add", "Sub", "Mul", "Max", "Min"])
        others = [one for one in self.alive if (one.dtype, one.shape) == (x.dtype, x.shape)]
        y = self.rng.choice([*others, self.data(x.dtype, x.shape)])
        if runs(op, (x.dtype, x.dtype), (x.shape, x.shape)):
            exact = x.exact and y.exact and (x.dtype not in FLOATS or op in ("Max", "Min"))
            self.keep(self.node(op, [x.name, y.name])[0], x, exact=exact)

    def divide(self) -> None:
        """By an input, or by one plus what is no number of its own."""
        x, op = self.pick(*WHOLE, "float32"), self.rng.choice(["Div", "Mod"])
        whole = x.dtype in WHOLE
        top = 5

        def values(generator: np.random.Generator, kind: str) -> np.ndarray:
            if not whole:
                return (1.5 + generator.random(x.shape)).astype(x.dtype)
            return generator.integers(1, top, x.shape).astype(x.dtype)

        if (op == "Mod" and not whole) or not runs(op, (x.dtype, x.dtype), (x.shape, x.shape)):
            return
        by = self.given(x.dtype, x.shape, values).name
        if whole and self.rng.random() < 0.5:
            by = self.node("Mul", [by, self.constant(np.asarray(2, x.dtype))])[0]
        self.keep(self.node(op, [x.name, by])[0], x, exact=x.exact and whole)

    def unary(self) -> None:
        """An op of one tensor."""
        op = self.rng.choice(UNARY)
        jumps = op in ("Sign", "Floor", "Ceil", "Round", "Not")
        x = self.pick(*FLOATS, *WHOLE, "bool", exact=jumps)
        if runs(op, (x.dtype,), (x.shape,)):
            exact = jumps or op in ("Abs", "Neg", "Relu", "Clip")
            self.keep(self.node(op, [x.name])[0], x, exact=x.exact and exact)

    def compare(self) -> None:
        """Compare two tensors, and choose by that."""
        x = self.pick(*FLOATS, *WHOLE, exact=True)
        y, op = self.data(x.dtype, x.shape), self.rng.choice(["Equal", "Less", "Greater", "GreaterOrEqual"])
        if not runs(op, (x.dtype, x.dtype), (x.shape, x.shape)):
            return
        found = self.node(op, [x.name, y.name])[0]
        self.keep(found, x, dtype="bool")
        if runs("Where", ("bool", x.dtype, x.dtype), (x.shape,) * 3):
            self.keep(self.node("Where", [found, x.name, y.name])[0], x)

    def cast(self) -> None:
        """Change the type; floats are put where every whole number can hold them first."""
        x = self.pick(*FLOATS, *WHOLE, "bool", exact=True)
        to = self.rng.choice([*FLOATS[:2], *WHOLE, "bool"])
        name = x.name
        if x.dtype in FLOATS:
            name = self.node("Clip", [name, *(self.constant(np.asarray(v, x.dtype)) for v in (0, 100))])[0]
        if runs("Cast", (x.dtype,), (x.shape,), json.dumps({"to": code(to)})):
            self.keep(self.node("Cast", [name], to=code(to))[0], x, dtype=to)

    def layer(self) -> None:
        """What networks mostly do."""
        generator = np.random.default_rng(self.rng.randrange(1 << 30))
        kind = self.rng.choice(["MatMul", "Conv", "Softmax", "LayerNormalization", "ReduceMean", "MaxPool"])
        if kind in ("Conv", "MaxPool"):
            x = self.pick("float32", rank=4)
            name = x.name
            if kind == "MaxPool":
                made = self.node(kind, [name], kernel_shape=[3, 3], pads=[1] * 4)[0]
                self.keep(made, x)
            else:
                weights = self.constant(generator.standard_normal((x.shape[1], x.shape[1], 3, 3)).astype(np.float32))
                self.keep(self.node(kind, [name, weights], pads=[1] * 4)[0], x, exact=False)
            return
        x = self.pick("float32", "float64", rank=2)
        if kind == "MatMul":
            weights = self.constant(generator.standard_normal((x.shape[1], 4)).astype(x.dtype))
            self.keep(self.node(kind, [x.name, weights])[0], x, shape=(x.shape[0], 4), exact=False)
        elif kind == "Softmax":
            self.keep(self.node(kind, [x.name], axis=-1)[0], x, exact=False)
        elif kind == "ReduceMean":
            self.keep(self.node(kind, [x.name], axes=[1])[0], x, shape=(x.shape[0], 1), exact=False)
        elif runs(kind, (x.dtype, x.dtype), (x.shape, x.shape[1:])):
            scale = self.constant(np.ones(x.shape[1:], x.dtype))
            self.keep(self.node(kind, [x.name, scale], axis=-1)[0], x, exact=False)

    def gather(self) -> None:
        """Take by indices that are an input."""
        x = self.pick(*FLOATS, *WHOLE, "bool")
        axis = self.rng.randrange(len(x.shape)) if x.shape else 0
        if not x.shape:
            return
        size, op = x.shape[axis], self.rng.choice(["Gather", "GatherElements", "GatherND", "ScatterElements", "OneHot"])
        if op == "Gather":
            which = self.role([size - 1, 0], [-1, -size], [0, 0])
            shape = (*x.shape[:axis], 2, *x.shape[axis + 1 :])
            self.keep(self.node(op, [x.name, which], axis=axis)[0], x, shape=shape)
        elif op == "GatherElements":
            which = self.role(np.zeros(x.shape, int), np.full(x.shape, size - 1), np.full(x.shape, -1))
            self.keep(self.node(op, [x.name, which], axis=axis)[0], x)
        elif op == "GatherND":
            ends = [size - 1 for size in x.shape]
            which = self.role([ends], [[0] * len(ends)])
            self.keep(self.node(op, [x.name, which])[0], x, shape=(1,))
        elif op == "ScatterElements" and runs(op, (x.dtype, "int64", x.dtype), (x.shape,) * 3):
            one = tuple(1 if index == axis else size for index, size in enumerate(x.shape))
            which = self.role(np.zeros(one, int), np.full(one, size - 1))
            update = self.data(x.dtype, one)
            self.keep(self.node(op, [x.name, which, update.name], axis=axis)[0], x)
        elif op == "OneHot":
            which, depth = self.role([0, 1, 2], [2, 2, 0]), self.role(3, 5)
            hot = self.node(op, [which, depth, self.constant(np.float32([0, 1]))])[0]
            self.summed(hot, Tensor("", "float32", ()))

    def sizes(self) -> None:
        """Something whose size is an input."""
        x = self.pick("float32", "int64", "int32", "float64", "uint8", rank=self.rng.choice([1, 2]))
        rank, total, last = len(x.shape), int(np.prod(x.shape)), x.shape[-1]
        op = self.rng.choice(SIZED)
        as_float = Tensor("", "float32", ())
        if op == "TopK" and x.exact and runs(op, (x.dtype, "int64"), (x.shape, (1,))) | (x.dtype == "float32"):
            best, which = self.node(op, [x.name, self.role([last], [1])], 2)
            self.summed(best, x)
            self.summed(which, Tensor("", "int64", ()), exact=False)
        elif op == "Split" and last > 1:
            parts = self.node(op, [x.name, self.role([1, last - 1], [last - 1, 1], [last, 0])], 2, axis=-1)
            self.summed(parts[0], x)
        elif op == "Range":
            steps = [self.role(0, 1), self.role(9, 12), self.role(1, 3, 2)]
            self.summed(self.node(op, steps)[0], Tensor("", "int64", ()))
        elif op == "Expand":
            self.summed(self.node(op, [x.name, self.role([2, *x.shape], [1] * (rank + 1))])[0], x)
        elif op == "Reshape":
            self.summed(self.node(op, [x.name, self.role([total, 1], [1, total], [-1, 1])])[0], x)
        elif op == "Tile":
            self.summed(self.node(op, [x.name, self.role([2] * rank, [1] * rank)])[0], x)
        elif op == "Pad" and runs(op, (x.dtype, "int64"), (x.shape, (2 * rank,))):
            self.summed(
                self.node(op, [x.name, self.role([1] * 2 * rank, [0] * 2 * rank, [0, *[2] * (2 * rank - 1)])])[0], x
            )
        elif op == "Slice":
            starts, ends = self.role([0], [last - 1], [-1]), self.role([last], [1 << 30])
            bounds = [starts, ends, self.role([rank - 1], [-1]), self.role([1], [2])]
            self.summed(self.node(op, [x.name, *bounds])[0], x)
        elif op == "ConstantOfShape":
            value = numpy_helper.from_array(np.array([2], np.float32))
            self.summed(self.node(op, [self.role([2, 3], [1, 1], [0, 2])], value=value)[0], as_float)
        elif op == "Squeeze":
            tall = self.node("Unsqueeze", [x.name, self.constant([0])])[0]
            self.summed(self.node(op, [tall, self.role([0], [-rank - 1])])[0], x)
        elif op == "Unsqueeze":
            self.summed(self.node(op, [x.name, self.role([0], [rank], [-1])])[0], x)
        elif op == "ReduceSum" and runs(op, (x.dtype,), (x.shape,)):
            self.summed(self.node(op, [x.name, self.role([0], [rank - 1])])[0], x)
        elif op == "CumSum" and runs(op, (x.dtype, "int64"), (x.shape, ())):
            self.keep(self.node(op, [x.name, self.role(0, rank - 1, -1)])[0], x, exact=x.exact and x.dtype in WHOLE)
        elif op == "Trilu" and rank == 2 and runs(op, (x.dtype, "int64"), (x.shape, ())):
            self.keep(self.node(op, [x.name, self.role(0, 1, -1)])[0], x)
        elif op == "Resize":
            image = self.pick("float32", rank=4)
            wanted = self.role([*image.shape[:2], 4, 4], [*image.shape[:2], 8, 2])
            made = self.node(op, [image.name, "", "", wanted], mode="nearest", nearest_mode="floor")[0]
            self.summed(made, image)
        elif op == "Loop":
            body = helper.make_graph(
                [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["v", "v"], ["w"])],
                "body",
                [
                    helper.make_tensor_value_info("i", TensorProto.INT64, []),
                    helper.make_tensor_value_info("go", TensorProto.BOOL, []),
                    helper.make_tensor_value_info("v", code(x.dtype), x.shape),
                ],
                [
                    helper.make_tensor_value_info("on", TensorProto.BOOL, []),
                    helper.make_tensor_value_info("w", code(x.dtype), x.shape),
                ],
            )
            if runs("Add", (x.dtype, x.dtype), (x.shape, x.shape)):
                self.keep(self.node(op, [self.role(2, 0, 3), "", x.name], body=body)[0], x)

    def scaled(self) -> None:
        """Quantise by a scale that is an input, and back."""
        x = self.pick("float32", exact=True)
        scale = self.given("float32", (), lambda g, k: np.asarray(g.choice([0.5, 0.25, 2.0]), np.float32))
        zero = self.constant(np.uint8(128))
        small = self.node("QuantizeLinear", [x.name, scale.name, zero])[0]
        self.keep(small, x, dtype="uint8")
        self.keep(self.node("DequantizeLinear", [small, scale.name, zero])[0], x)


@dataclass(frozen=True)
class RandomNetwork:
    """A network, and what makes feeds of it."""

    proto: onnx.ModelProto
    inputs: Mapping[str, tuple[str, tuple[int, ...], Values]]

    def feed(self, kind: str, seed: int) -> dict[str, np.ndarray]:
        """A legal feed of one of ``KINDS``."""
        generator = np.random.default_rng(seed)
        return {name: np.asarray(values(generator, kind)) for name, (_, _, values) in self.inputs.items()}


def random_network(seed: int) -> RandomNetwork:
    """A network that plain ONNX Runtime loads."""
    while True:
        grower = Grower(random.Random(seed))
        steps = [
            grower.sizes,
            grower.sizes,
            grower.gather,
            grower.divide,
            grower.arithmetic,
            grower.layer,
            grower.unary,
        ]
        steps += [grower.compare, grower.cast, grower.scaled]
        for _ in range(grower.rng.randint(3, 9)):
            grower.rng.choice(steps)()
        read = {name for node in grower.nodes for name in node.input}
        made = {name for node in grower.nodes for name in node.output}
        ends = [one for one in grower.alive if one.name in made and one.name not in read][:6]
        graph = helper.make_graph(
            grower.nodes,
            f"random {seed}",
            [helper.make_tensor_value_info(name, code(own[0]), own[1]) for name, own in grower.inputs.items()],
            [helper.make_tensor_value_info(one.name, code(one.dtype), one.shape) for one in ends],
            grower.constants,
        )
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        try:
            onnx.checker.check_model(proto)
            session(proto)
        except Exception:  # noqa: BLE001  a combination that the runtime does not have: another one is grown
            ends = []
        if ends:
            return RandomNetwork(proto, grower.inputs)
        seed += 1_000_003


def difference(got: Any, right: np.ndarray) -> float:
    """How far an output is off: relative to its largest value for floats, infinite where it may not be off at all."""
    got = np.asarray(got)
    if got.dtype != right.dtype or got.shape != right.shape:
        return float("inf")
    with np.errstate(all="ignore"):
        same = (got == right) | ((got != got) & (right != right))
        if same.all():
            return 0.0
        if right.dtype.kind != "f" or not (np.isfinite(got[~same]).all() and np.isfinite(right[~same]).all()):
            return float("inf")
        a, b = got.astype(np.float64), right.astype(np.float64)
        largest = np.abs(b[np.isfinite(b)]).max(initial=0.0)
        return float(np.abs(a - b)[~same].max() / (largest or 1.0)) / (10.0 if right.dtype == np.float16 else 1.0)


def told(agent: Agent, seed: int) -> dict[str, Any]:
    """What an agent made of one network: what was wrong, refused, or answered where it should not be.

    Everybody who may answer instead has to be right as well, whoever is fastest now.
    """
    network = random_network(seed)
    plain = session(network.proto)
    names = [output.name for output in plain.get_outputs()]
    faults: list[str] = []
    with agent.load(network.proto.SerializeToString(), background=False, all_rivals=True) as loaded:
        for turn, kind in enumerate(KINDS * 2):
            feed = network.feed(kind, 100 * seed + turn)
            try:
                right = plain.run(names, feed)
            except Exception as error:  # noqa: BLE001  the runtime's own classes
                right, why = None, str(error)[:200]
            try:
                got = loaded.run(names, feed)
            except Exception as error:  # noqa: BLE001  any is looked at
                if right is not None:
                    faults.append(f"{kind}: refused: {type(error).__name__}: {error}"[:400])
                continue
            if right is None:
                faults.append(f"{kind}: answered what ONNX Runtime refuses: {why}")
                continue
            answers = {"the session": dict(zip(names, got, strict=True))}
            if (prepared := loaded.plans.at(feed)) is not None and all_finite(right):
                answers |= {name: own.run(feed)[0] for name, own in prepared.contenders.items()}
            for who, answer in answers.items():
                for name, expected in zip(names, right, strict=True):
                    if (off := difference(answer[name], expected)) > TOLERANCE:
                        faults.append(f"{kind}: {name} ({expected.dtype}) of {who} is off by {off:.2g}")
        if not loaded.verify(network.feed("ordinary", seed)).correct:
            faults.append("verify says wrong")
        planned, notes, used = bool(loaded.plans.ready()), loaded.notes, loaded.get_providers()
    return {"seed": seed, "faults": faults, "planned": planned, "notes": notes, "used": used}


def main(first: int, count: int, cache: str, processors: str | None = None) -> None:
    """Run some networks through one agent, on all of the cores' processors unless some are named.

    Outside a campaign nothing is waited for, and all is done in this process, whose children take most of the time.
    """
    with pytest.MonkeyPatch.context() as patched:
        if not CAMPAIGN:
            hasten(patched)
        with Agent(cache=cache, processors=processors, measuring_s=MEASURING_S) as agent:
            for seed in range(first, first + count):
                print(json.dumps({"begun": seed}), flush=True)
                print(json.dumps(told(agent, seed)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
