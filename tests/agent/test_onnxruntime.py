"""The module that stands in for ONNX Runtime: the same calls on both, with the same answers and errors."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper

import agent_sdk.onnxruntime as stand_in
from agent_sdk import Agent
from agent_sdk.native import library
from tests import CAMPAIGN
from tests.agent.models import BRANCHING

Ask = Callable[[Any], Any]
info = helper.make_tensor_value_info
ONE = np.arange(3, dtype=np.float32).reshape(1, 3) - 1
CPU = ["CPUExecutionProvider"]
RNG = np.random.default_rng(5)


def network(nodes: list[onnx.NodeProto], inputs: list[Any], outputs: list[Any], *weights: onnx.TensorProto) -> bytes:
    """Return a file with metadata of its own."""
    graph = helper.make_graph(nodes, "net", inputs, outputs, list(weights))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="tests")
    helper.set_model_props(model, {"names": "{0: 'cat'}"})
    return bytes(model.SerializeToString())


def chain(shape: list[Any], kind: int = T.FLOAT) -> bytes:
    """Return a network of two ops whose output's shape the file does not say."""
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Sigmoid", ["r"], ["y"])]
    return network(nodes, [info("x", kind, shape)], [info("y", kind, None)])


GAIN = numpy_helper.from_array(np.ones(3, np.float32), "gain")
SCALED = network(
    [helper.make_node("Mul", ["x", "gain"], ["y"])],
    [info("x", T.FLOAT, [1, 3]), info("gain", T.FLOAT, [3])],
    [info("y", T.FLOAT, [1, 3])],
    GAIN,
)
"""A network with an optional input."""
TEXT = network([helper.make_node("Identity", ["x"], ["y"])], [info("x", T.STRING, [2])], [info("y", T.STRING, [2])])
SEQUENCE = network(
    [helper.make_node("SequenceConstruct", ["x", "x"], ["y"])],
    [info("x", T.FLOAT, [1, 3])],
    [helper.make_tensor_sequence_value_info("y", T.FLOAT, None)],
)
NETWORKS: Mapping[str, tuple[bytes, Any]] = {
    "static": (chain([1, 3]), ONE),
    "open": (chain(["batch", 3]), ONE),
    "branching": (BRANCHING, RNG.standard_normal((1, 3, 16, 16)).astype(np.float32)),
    "optional": (SCALED, ONE),
    "text": (TEXT, np.array(["a", "ü"])),
    "sequence": (SEQUENCE, ONE),
}
"""Files with an input for each."""


@pytest.fixture
def behind(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in uses the test's agent."""
    monkeypatch.setattr(stand_in.AGENTS, "get", lambda *, on_cores: agent)


@pytest.fixture(params=["at once", "behind"])
def planned(request: pytest.FixtureRequest, behind: None, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are there with a session, or are made behind its answers as they are for any program."""
    if request.param == "at once":
        monkeypatch.setattr(agent, "load", partial(agent.load, background=False))


def outcome(ask: Ask, session: Any) -> Any:
    """Return what a call gives, in arrays, or the error that it raises."""
    try:
        return plain(ask(session))
    except Exception as error:  # noqa: BLE001  any may be asked for
        return error


def plain(value: Any) -> Any:
    """Return values of ONNX Runtime's as arrays, and what is told of inputs and of the file as plain data."""
    if isinstance(value, onnxruntime.OrtValue):
        return value.numpy() if value.is_tensor() else "no tensor"
    if hasattr(value, "custom_metadata_map"):
        return {name: getattr(value, name) for name in dir(value) if not name.startswith("_")}
    if hasattr(value, "type") and not isinstance(value, np.ndarray):
        return [value.name, value.type, value.shape]
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def alike(mine: Any, right: Any) -> bool:
    """Whether an outcome is the right one: equal values, or an error that is caught where the right one is."""
    if isinstance(right, Exception):
        return isinstance(mine, type(right))
    if isinstance(right, np.ndarray) and right.dtype.kind == "f":
        return mine.dtype == right.dtype and np.allclose(mine, right, rtol=1e-5)
    if isinstance(right, list):
        return isinstance(mine, list) and all(alike(*pair) for pair in zip_longest(mine, right))
    return bool(np.array_equal(mine, right)) if isinstance(right, np.ndarray) else bool(mine == right)


def compare(source: bytes, asked: Mapping[str, Ask], **options: Any) -> Any:
    """Ask both packages the same of one network, and return the stand-in's session."""
    options = {"providers": CPU} | options
    mine, theirs = (module.InferenceSession(source, **options) for module in (stand_in, onnxruntime))
    found = {name: (outcome(ask, mine), outcome(ask, theirs)) for name, ask in asked.items()}
    wrong = {name: pair for name, pair in found.items() if not alike(*pair)}
    assert not wrong, wrong
    return mine


def value_of(array: np.ndarray) -> onnxruntime.OrtValue:
    """Return an array as ONNX Runtime's own value."""
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


@pytest.mark.parametrize("name", NETWORKS)
def test_what_a_session_tells_and_answers(planned: None, name: str) -> None:
    """Inputs, outputs, metadata, options, providers and every way to run are those of ONNX Runtime's session."""
    source, x = NETWORKS[name]
    quiet, stopped = onnxruntime.RunOptions(), onnxruntime.RunOptions()
    stopped.terminate = True
    values = {} if name == "text" else {"x": value_of(x)}
    asked: dict[str, Ask] = {
        "inputs": lambda s: s.get_inputs(),
        "outputs": lambda s: s.get_outputs(),
        "optional inputs": lambda s: s.get_overridable_initializers(),
        "metadata": lambda s: s.get_modelmeta(),
        "providers": lambda s: s.get_providers(),
        "provider options": lambda s: s.get_provider_options(),
        "threads": lambda s: s.get_session_options().intra_op_num_threads,
        "memory": lambda s: [about.name for about in s.get_input_memory_infos()],
        "profile": lambda s: s.end_profiling(),
        "a method that is none": lambda s: s.get_everything(),
        "all": lambda s: s.run(None, {"x": x}),
        "no names": lambda s: s.run([], {"x": x}),
        "twice": lambda s: s.run(["y", "y"], {"x": x}),
        "as a list": lambda s: s.run(None, {"x": x.tolist()}),
        "run options": lambda s: s.run(None, {"x": x}, quiet),
        "stopped": lambda s: s.run(None, {"x": x}, run_options=stopped),
        "values": lambda s: s.run_with_ort_values(None, values),
        "values of one output": lambda s: s.run_with_ort_values(["y"], values, quiet),
        "a value as an input": lambda s: s.run(None, values),
        "an array as a value": lambda s: s.run_with_ort_values(None, {"x": x}),
        "unknown input": lambda s: s.run(None, {"x": x, "q": x}),
        "missing input": lambda s: s.run(None, {}),
        "missing value": lambda s: s.run_with_ort_values(None, {}),
        "unknown output": lambda s: s.run(["q"], {"x": x}),
        "names as text": lambda s: s.run("y", {"x": x}),
        "no feed": lambda s: s.run(None),
        "another rank": lambda s: s.run(None, {"x": x[0]}),
        "another size": lambda s: s.run(None, {"x": np.concatenate([x, x], -1)}),
        "another type": lambda s: s.run(None, {"x": np.zeros(x.shape, np.int8)}),
        "a number": lambda s: s.run(None, {"x": 1.5}),
        "no contiguous array": lambda s: s.run(None, {"x": np.asfortranarray(np.repeat(x, 2, 0))[::2]}),
    }
    if name == "optional":
        feed = {"x": x, "gain": np.full(3, 5, np.float32)}
        asked["given"] = lambda s: s.run(None, feed)
        asked["given as values"] = lambda s: s.run_with_ort_values(["y"], {key: value_of(feed[key]) for key in feed})
        asked["optional input of another shape"] = lambda s: s.run(None, feed | {"gain": x[0, :2]})
    session = compare(source, asked)
    assert session.planned is not None


KINDS = ("float16", "float32", "float64", "bool", *(f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)))


def bindings(x: np.ndarray, number: int) -> dict[str, Ask]:
    """Return what can be bound and run on a network that swaps the dimensions of ``x``, whose type has this number."""
    made = np.empty(x.shape[::-1], x.dtype)

    def bound(*calls: tuple[Any, ...], runs: int = 1) -> Ask:
        def ask(session: Any) -> Any:
            made[...] = 0
            binding = session.io_binding()
            for verb, *arguments in calls:
                getattr(binding, verb)(*arguments)
            binding.synchronize_inputs()
            for _ in range(runs):
                session.run_with_iobinding(binding)
            binding.synchronize_outputs()
            vector = binding.get_outputs_as_ortvaluevector()
            again = [vector[index].numpy() for index in range(len(vector))]
            return [binding.get_outputs(), binding.copy_outputs_to_cpu(), again, made.copy()]

        return ask

    read, new = ("bind_cpu_input", "x", x), ("bind_output", "y")
    into = ("bind_ortvalue_output", "y", value_of(made))
    address = (made.shape, made.ctypes.data)
    return {
        "array": bound(read, new),
        "array, device named": bound(read, (*new, "cpu", 0)),
        "address": bound(("bind_input", "x", "cpu", 0, x.dtype, x.shape, x.ctypes.data), new),
        "addresses": bound(
            ("bind_input", "x", "cpu", 0, number, list(x.shape), x.ctypes.data), (*new, "cpu", 0, number, *address)
        ),
        "value": bound(("bind_ortvalue_input", "x", value_of(x)), new),
        "values": bound(("bind_ortvalue_input", "x", value_of(x)), into),
        "bound again": bound(read, read, new, into),
        "run again": bound(read, (*new, "cpu", 0, x.dtype, *address), runs=2),
        "inputs taken back": bound(read, new, ("clear_binding_inputs",)),
        "outputs taken back": bound(read, new, ("clear_binding_outputs",)),
        "outputs bound after that": bound(read, into, ("clear_binding_outputs",), new),
        "nothing": bound(),
        "no input of that name": bound(("bind_cpu_input", "q", x)),
        "no output of that name": bound(read, ("bind_output", "q")),
        "no array": bound(("bind_cpu_input", "x", x.tolist())),
        "no value": bound(("bind_ortvalue_input", "x", x)),
        "another device": bound(read, (*new, "cuda", 0)),
        "memory of no type": bound(read, (*new, "cpu", 0, None, *address)),
        "memory of no shape": bound(read, (*new, "cpu", 0, number, None, made.ctypes.data)),
        "an input of another type": bound(("bind_cpu_input", "x", x.astype(np.complex64)), new),
        "an output of another shape": bound(read, (*new, "cpu", 0, number, x.shape, made.ctypes.data)),
    }


@pytest.mark.parametrize("kind", KINDS if CAMPAIGN else ("float16", "float32", "bool", "int64"))
def test_what_is_bound(planned: None, kind: str) -> None:
    """Arrays, addresses and values are read and written where they stand; what cannot be bound raises alike."""
    x = np.arange(6).reshape(3, 2).astype(kind)
    number = helper.np_dtype_to_tensor_dtype(x.dtype)
    ends = [info("x", number, ["n", 2])], [info("y", number, [2, "n"])]
    source = network([helper.make_node("Transpose", ["x"], ["y"])], *ends)
    session = compare(source, bindings(x, number))
    assert session.planned is not None


def test_bound_types_that_numpy_lacks(behind: None) -> None:
    """A bfloat16 tensor is bound by its address, and as a value."""
    x = np.array([1, -2, 3], np.float32).view(np.uint16)[1::2].copy()
    made = np.zeros_like(x)
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    source = network(nodes, [info("x", T.BFLOAT16, [3])], [info("y", T.BFLOAT16, [3])])

    def addresses(session: Any) -> Any:
        binding = session.io_binding()
        binding.bind_input("x", "cpu", 0, T.BFLOAT16, [3], x.ctypes.data)
        binding.bind_output("y", "cpu", 0, T.BFLOAT16, [3], made.ctypes.data)
        session.run_with_iobinding(binding)
        return made.copy()

    def values(session: Any) -> Any:
        given = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(x, T.BFLOAT16)
        [value] = session.run_with_ort_values(None, {"x": given})
        return value.data_type()

    session = compare(source, {"addresses": addresses, "values": values})
    assert np.array_equal(made, x)
    assert session.planned is not None


def test_bindings_belong_to_their_session(behind: None) -> None:
    """A binding of another session is refused; one of the package's own class runs all the same."""
    source, x = NETWORKS["open"]
    mine, other = (stand_in.InferenceSession(source) for _ in range(2))
    binding = mine.io_binding()
    assert isinstance(binding, stand_in.IOBinding)
    with pytest.raises(ValueError, match="session"):
        other.run_with_iobinding(binding)
    theirs = onnxruntime.IOBinding(mine)
    theirs.bind_cpu_input("x", x)
    theirs.bind_output("y")
    mine.run_with_iobinding(theirs)
    assert np.allclose(theirs.copy_outputs_to_cpu()[0], mine.run(None, {"x": x})[0])


def test_an_optional_input_is_not_bound(planned: None) -> None:
    """ONNX Runtime binds none; the initialiser's own value answers what is bound."""
    gain = np.full(3, 5, np.float32)

    def bound(*inputs: tuple[str, np.ndarray]) -> Ask:
        def ask(session: Any) -> Any:
            binding = session.io_binding()
            for given in inputs:
                binding.bind_cpu_input(*given)
            binding.bind_output("y")
            session.run_with_iobinding(binding)
            return binding.copy_outputs_to_cpu()

        return ask

    compare(SCALED, {"own": bound(("x", ONE)), "given": bound(("x", ONE), ("gain", gain)), "again": bound(("x", ONE))})


def test_runs_that_call_back(planned: None) -> None:
    """Outputs or the error arrive with the caller's own data; what is missing is said at once."""
    source, x = NETWORKS["open"]
    told: list[tuple[Any, Any, str]] = []
    done = threading.Semaphore(0)

    def callback(*what: Any) -> None:
        told.append(what)
        done.release()

    def asked(feed: dict[str, Any], names: list[str] | None = None) -> Ask:
        def ask(session: Any) -> Any:
            session.run_async(names, feed, callback, 7)
            assert done.acquire(timeout=60)
            outputs, data, error = told.pop()
            return [*outputs, data, bool(error)]

        return ask

    feeds = {"all": {"x": x}, "as a list": {"x": x.tolist()}, "another rank": {"x": x[0]}, "missing": {}}
    more = {"named": asked({"x": x}, ["y"]), "unknown output": asked({"x": x}, ["q"])}
    compare(source, {name: asked(feed) for name, feed in feeds.items()} | more)


Set = Callable[[Any, Path], object]
FIVES = value_of(np.full(3, 5, np.float32))
OPTIONS: Mapping[str, Set] = {
    "threads": lambda o, _: setattr(o, "intra_op_num_threads", 1),
    "optimisation": lambda o, _: setattr(
        o, "graph_optimization_level", onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    ),
    "order": lambda o, _: setattr(o, "execution_mode", onnxruntime.ExecutionMode.ORT_PARALLEL),
    "deterministic": lambda o, _: setattr(o, "use_deterministic_compute", True),
    "a profile": lambda o, path: (
        setattr(o, "enable_profiling", True),
        setattr(o, "profile_file_prefix", f"{path}/p"),
    ),
    "the optimised network": lambda o, path: setattr(o, "optimized_model_filepath", f"{path}/optimised.onnx"),
    "a size by its name": lambda o, _: o.add_free_dimension_override_by_name("batch", 1),
    "an entry": lambda o, _: o.add_session_config_entry("session.disable_prepacking", "1"),
    "a library of operators": lambda o, _: o.register_custom_ops_library(library()._name),
    "an initialiser": lambda o, _: o.add_initializer("gain", FIVES),
    "messages": lambda o, _: setattr(o, "log_severity_level", 1),
}
"""What people ask for in session options that no plan gives."""


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_no_plan_gives_are_honoured(name: str, tmp_path: Path) -> None:
    """ONNX Runtime's own session answers with them, as it does in the package: shapes, answers, files."""
    told = []
    for module in (stand_in, onnxruntime):
        folder = tmp_path / module.__name__
        folder.mkdir()
        options = module.SessionOptions()
        OPTIONS[name](options, folder)
        fixed = "gain" if name == "an initialiser" else "batch"
        source = SCALED if fixed == "gain" else chain(["batch", 3])
        session = module.InferenceSession(source, options, providers=CPU)
        answer = session.run(None, {"x": ONE})[0]
        session.end_profiling()
        threads = session.get_session_options().intra_op_num_threads
        files = [path.name[:2] for path in folder.iterdir()]
        told.append(([port.shape for port in session.get_inputs()], answer.tolist(), threads, files))
        assert getattr(session, "planned", None) is None
    assert told[0] == told[1]


def test_no_option_is_ignored() -> None:
    """Whatever is set or called on session options keeps a session from being planned, but for what is silent."""
    for name, default in stand_in._DEFAULTS.items():
        options = stand_in.SessionOptions()
        other = {bool: not default, int: 1, str: "other"}.get(type(default))
        alone = name == "intra_op_num_threads" and len(os.sched_getaffinity(0)) == 1
        if other is None:
            [other, *_] = [kind for kind in type(default).__members__.values() if kind != default]
        setattr(options, name, other)
        assert stand_in._beyond(options) == ([] if name in stand_in.SILENT or alone else [name])
    for name in stand_in._MEMBERS.keys() - stand_in._DEFAULTS.keys():
        options = stand_in.SessionOptions()
        with suppress(TypeError, RuntimeError):
            getattr(options, name)()
        if name not in stand_in.READS:
            assert stand_in._beyond(options) == [name]
    options = stand_in.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = len(os.sched_getaffinity(0)), 3
    assert stand_in._beyond(options) == []
    assert stand_in._beyond(None) == stand_in._beyond(stand_in.SessionOptions()) == []
    assert stand_in._beyond(onnxruntime.SessionOptions())


PROVIDERS: Mapping[str, tuple[Any, Any, bool]] = {
    "none": (None, None, True),
    "empty": ([], None, True),
    "the CPU": (CPU, None, True),
    "all": (onnxruntime.get_available_providers(), None, True),
    "twice": ([*CPU, *CPU], None, True),
    "a GPU that is not there": (["CUDAExecutionProvider", *CPU], None, True),
    "a GPU with options that is not there": ([("CUDAExecutionProvider", {"device_id": 0}), *CPU], None, False),
    "options": ([("CPUExecutionProvider", {"use_arena": 1})], None, False),
    "options beside": (CPU, [{"use_arena": 1}], False),
    "no options": ([("CPUExecutionProvider", {})], None, True),
    "unknown": (["Imagined"], None, False),
    "text": ("CPUExecutionProvider", None, False),
    "options of the wrong number": (CPU, [], False),
}
"""Providers, their options, and whether plans answer in their place."""


@pytest.mark.filterwarnings("ignore:Specified provider", "ignore:Duplicate provider")
@pytest.mark.parametrize("name", PROVIDERS)
def test_providers(behind: None, name: str) -> None:
    """Those that are named answer, are told, can be changed later; what is wrong with them is said alike."""
    providers, options, plans = PROVIDERS[name]
    source, x = NETWORKS["open"]
    asked: dict[str, Ask] = {
        "named": lambda s: s.get_providers(),
        "options": lambda s: s.get_provider_options(),
        "answer": lambda s: s.run(None, {"x": x}),
        "changed": lambda s: s.set_providers(providers, options),
        "named then": lambda s: s.get_providers(),
        "answer then": lambda s: s.run(None, {"x": x}),
    }
    session = compare(source, asked, providers=providers, provider_options=options)
    assert (session.planned is not None) == plans


def test_arguments_and_files_that_are_wrong(behind: None, tmp_path: Path) -> None:
    """What is no network raises what ONNX Runtime raises; so does what is no path."""
    (tmp_path / "text.onnx").write_text("no network")
    (tmp_path / "empty.onnx").write_bytes(b"")
    nodes = [helper.make_node("Warp", ["x"], ["y"])]
    unknown = network(nodes, [info("x", T.FLOAT, [1])], [info("y", T.FLOAT, [1])])
    sources = [tmp_path / "none.onnx", str(tmp_path / "text.onnx"), tmp_path / "empty.onnx", tmp_path, b"", b"x", 3]
    for source in [*sources, unknown, "lstm"]:
        mine, theirs = (outcome(lambda m, s=source: m.InferenceSession(s), m) for m in (stand_in, onnxruntime))
        assert isinstance(theirs, Exception)
        assert type(mine) is type(theirs)
    for arguments in ((BRANCHING, "fast"), (BRANCHING, None, 3)):
        assert isinstance(outcome(lambda m, given=arguments: m.InferenceSession(*given), stand_in), TypeError)


def test_options_in_the_file_are_honoured(behind: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the environment says that the file's own options count, or a caller says more, no plan answers."""
    model = onnx.load_from_string(chain(["batch", 3]))
    entry = model.metadata_props.add()
    entry.key, entry.value = "ort_config", '{"session_options": {"intra_op_num_threads": 3}}'
    told = {"threads": lambda s: s.get_session_options().intra_op_num_threads}
    source = model.SerializeToString()
    assert compare(source, told).planned is not None
    assert compare(source, told, read_config_from_model=1).planned is None
    assert compare(source, told, disabled_optimizers=["ConstantFolding"]).planned is None
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    assert compare(source, told).planned is None


def test_all_else_is_the_packages_own() -> None:
    """Every public name is there: ours, or the same object; modules can be imported from it; what is none is named."""
    ours = {"InferenceSession", "SessionOptions", "IOBinding", "NodeArg", "ModelMetadata"}
    for name in dir(onnxruntime):
        if not name.startswith("__"):
            assert (getattr(stand_in, name) is getattr(onnxruntime, name)) == (name not in ours), name
    assert set(dir(onnxruntime)) <= set(dir(stand_in))
    assert stand_in.__version__ == onnxruntime.__version__
    from agent_sdk.onnxruntime import datasets

    assert datasets.__name__ == "onnxruntime.datasets"
    with pytest.raises(AttributeError, match="training"):
        _ = stand_in.training
    session = stand_in.InferenceSession(BRANCHING, stand_in.SessionOptions(), **{"disabled_optimizers": []})
    assert isinstance(session, onnxruntime.InferenceSession)


def test_shapes_that_are_told_are_the_callers_own(behind: None) -> None:
    """Who changes a list of sizes changes nothing for anybody else."""
    source, x = NETWORKS["open"]
    session = stand_in.InferenceSession(source)
    session.get_inputs()[0].shape[0] = 9
    assert session.get_inputs()[0].shape == ["batch", 3]
    assert session.run(None, {"x": x})[0].shape == (1, 3)


def test_a_session_that_nobody_holds_is_closed(behind: None) -> None:
    """What is dropped ends like what is closed, without anybody waiting."""
    session = stand_in.InferenceSession(NETWORKS["static"][0])
    held = session.planned
    assert held is not None
    del session
    end = time.monotonic() + 60
    while not held.plans.closed and time.monotonic() < end:
        time.sleep(0.01)
    assert held.plans.closed


PROGRAM = """
import os, sys
import numpy as np
import agent_sdk.onnxruntime as onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1])
assert session.planned is not None
feed = {session.get_inputs()[0].name: np.ones((1, 3), np.float32)}
[right] = session.run(None, feed)
child = os.fork()
if child == 0:
    new = onnxruntime.InferenceSession(sys.argv[1])
    same = np.allclose(new.run(None, feed)[0], right) and np.allclose(session.run(None, feed)[0], right)
    os._exit(0 if same and new.planned is not None else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("right", float(right.sum()))
"""


def test_one_agent_for_a_process_and_its_children(tmp_path: Path) -> None:
    """An ordinary program needs no agent of its own, may fork, and ends by itself."""
    path = tmp_path / "net.onnx"
    path.write_bytes(chain([1, 3]))
    environment = {"HOPE_CACHE_DIR": str(tmp_path / "cache"), "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("right 2.19")
