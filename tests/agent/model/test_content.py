"""What was loaded answers, whatever becomes of its files, of a proto, or of the directory that paths begin in."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

from agent_sdk import Agent
from agent_sdk.errors import ModelError
from agent_sdk.model import Content, read_network
from agent_sdk.model.held import TICK_S, HeldFile
from agent_sdk.model.source import tensors
from tests.agent.test_session_shapes import until

SIZE = 64
FEED = {"x": np.ones((1, SIZE), np.float32)}
DATA = "net.onnx.data"


def network(factor: float) -> onnx.ModelProto:
    """Return a network that multiplies ones by a factor, with a weight and a bias."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, SIZE]) for name in "xy")
    weights = [np.full((SIZE, SIZE), factor / 2 / SIZE, np.float32), np.full(SIZE, factor / 2, np.float32)]
    held = [numpy_helper.from_array(array, name) for array, name in zip(weights, "wb", strict=True)]
    graph = helper.make_graph(nodes, "net", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def save(factor: float, folder: Path, *, beside: bool) -> None:
    """Write the network, its weights in the file or in one beside it, over what is there."""
    folder.mkdir(exist_ok=True)
    proto = network(factor)
    if beside:
        (folder / DATA).unlink(missing_ok=True)
        onnx.save(proto, folder / "net.onnx", save_as_external_data=True, location=DATA, size_threshold=0)
    else:
        onnx.save(proto, folder / "net.onnx")


def replace(folder: Path, beside: bool) -> None:
    """Put other files in place of the old ones, as an update does."""
    save(3.0, folder / "next", beside=beside)
    for file in (folder / "next").iterdir():
        os.replace(file, folder / file.name)


def overwrite(folder: Path, beside: bool) -> None:
    """Write other weights into the same files, and give these the times that they had."""
    save(3.0, folder / "next", beside=beside)
    for file in (folder / "next").iterdir():
        old = folder / file.name
        about = old.stat()
        with old.open("r+b") as opened:
            opened.write(file.read_bytes())
        os.utime(old, ns=(about.st_atime_ns, about.st_mtime_ns))


def truncate(folder: Path, beside: bool) -> None:
    """Cut what holds the weights to nothing."""
    os.truncate(folder / (DATA if beside else "net.onnx"), 0)


def delete(folder: Path, beside: bool) -> None:
    """Remove everything."""
    shutil.rmtree(folder)


def move(folder: Path, beside: bool) -> None:
    """Move the files elsewhere and leave others in their place."""
    for file in list(folder.iterdir()):
        file.rename(folder / f"old-{file.name}")
    save(3.0, folder, beside=beside)


CHANGES = [replace, overwrite, truncate, delete, move]
KEPT = [replace, delete]
"""Changes after which the old content can still be read, also where nothing was read of it before."""


@pytest.mark.parametrize("beside", [False, True], ids=["whole", "beside"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("planned", [False, True])
def test_what_was_loaded_answers(
    change: Callable[[Path, bool], None], beside: bool, planned: bool, agent: Agent, tmp_path: Path
) -> None:
    """Changed right after loading, or once a plan answers: every answer is that of the file as it was."""
    folder = tmp_path / "net"
    save(2.0, folder, beside=beside)
    with agent.load(folder / "net.onnx") as session:
        if planned:
            session.run(FEED)
            until(lambda: session.stats.prepared == 1)
        change(folder, beside)
        np.testing.assert_allclose(session.run(FEED)["y"], 2.0, rtol=1e-5)
        until(lambda: session.stats.prepared == 1 or any("changed" in note for note in session.notes))
        for _ in range(3):
            np.testing.assert_allclose(session.run(FEED)["y"], 2.0, rtol=1e-5)
        if change in KEPT:
            assert session.stats.prepared == 1
            assert session.verify(FEED).correct
            assert not session.notes


@pytest.mark.parametrize("beside", [False, True], ids=["whole", "beside"])
def test_a_file_that_was_only_moved_is_the_same_file(beside: bool, tmp_path: Path) -> None:
    """Once its digest is known, a new name and new rights change nothing; a byte does, whatever its times say."""
    save(2.0, tmp_path, beside=beside)
    with Content(tmp_path / "net.onnx") as content:
        content.proto()
        for file in list(tmp_path.iterdir()):
            file.rename(tmp_path / f"old-{file.name}")
            (tmp_path / f"old-{file.name}").chmod(0o400)
        assert content.proto() == network(2.0)
        with content.opened() as file:
            assert isinstance(file.file, bytes) == bool(file.beside) == beside
        weights = tmp_path / f"old-{DATA if beside else 'net.onnx'}"
        about = weights.stat()
        weights.chmod(0o600)
        with weights.open("r+b") as opened:
            opened.seek(-1, os.SEEK_END)
            opened.write(b"\x01")
        os.utime(weights, ns=(about.st_atime_ns, about.st_mtime_ns))
        with pytest.raises(ModelError, match="has changed since it was loaded"):
            content.proto()
        with pytest.raises(ModelError, match="has changed since it was loaded"), content.opened():
            pass


@pytest.mark.parametrize("inner", [False, True], ids=["at the top", "in a branch too"])
def test_weights_are_read_from_wherever_they_lie(inner: bool, agent: Agent, tmp_path: Path) -> None:
    """Several files, in folders, from any offset on, and those of branches, also once all of them are gone."""
    proto, files = network(2.0), dict[str, bytes]()
    if inner:
        other = helper.make_graph(
            [helper.make_node("Add", ["y", "c"], ["kept"])],
            "branch",
            [],
            [helper.make_tensor_value_info("kept", TensorProto.FLOAT, [1, SIZE])],
            [numpy_helper.from_array(np.full(SIZE, 4.0, np.float32), "c")],
        )
        proto.graph.node.append(helper.make_node("If", ["which"], ["z"], then_branch=other, else_branch=other))
        proto.graph.input.append(helper.make_tensor_value_info("which", TensorProto.BOOL, []))
        proto.graph.output[0].name = "z"
    for place, tensor in enumerate(tensors(proto.graph)):
        location = f"part/{tensor.name}.bin" if place % 2 else "weights.bin"
        before = files.get(location, b"") + b"\xff" * (place + 1)
        files[location] = before + tensor.raw_data
        set_external_data(tensor, location, len(before), len(tensor.raw_data))
        tensor.ClearField("raw_data")
    (tmp_path / "net" / "part").mkdir(parents=True)
    for name, data in files.items():
        (tmp_path / "net" / name).write_bytes(data)
    (tmp_path / "net" / "net.onnx").write_bytes(proto.SerializeToString())
    feed = {**FEED, **({"which": np.array(True)} if inner else {})}
    expected = 6.0 if inner else 2.0
    with agent.load(tmp_path / "net" / "net.onnx") as session:
        shutil.rmtree(tmp_path / "net")
        np.testing.assert_allclose(session.run(None, feed)[0], expected, rtol=1e-5)
        until(lambda: session.stats.prepared == 1 or bool(session.notes))
        np.testing.assert_allclose(session.run(None, feed)[0], expected, rtol=1e-5)
        assert session.verify(feed).correct


def test_what_the_caller_holds_may_change(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proto, the shapes that were given, and the directory that a relative path begins in."""
    save(2.0, tmp_path / "one", beside=True)
    save(3.0, tmp_path / "two", beside=True)
    proto, shapes = network(2.0), {"x": [1, SIZE]}
    monkeypatch.chdir(tmp_path / "one")
    with agent.load(proto, shapes=shapes) as held, agent.load("net.onnx") as relative:
        shapes["x"][0] = 7
        proto.graph.initializer[0].CopyFrom(network(3.0).graph.initializer[0])
        monkeypatch.chdir(tmp_path / "two")
        for session in (held, relative):
            np.testing.assert_allclose(session.run(FEED)["y"], 2.0, rtol=1e-5)
            until(lambda session=session: session.stats.prepared == 1)
            np.testing.assert_allclose(session.run(FEED)["y"], 2.0, rtol=1e-5)
            assert session.verify(FEED).correct


def test_links_as_a_hub_client_lays_them_out(agent: Agent, tmp_path: Path) -> None:
    """Network and weights are links into one folder of other names; where they lead later changes nothing."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0a1b" / "onnx"
    snapshot.mkdir(parents=True)
    for factor, suffix in ((2.0, "old"), (3.0, "new")):
        save(factor, blobs, beside=True)
        for name in ("net.onnx", DATA):
            (blobs / name).rename(blobs / f"{name[-4:]}-{suffix}")
    for suffix in ("old", "new"):
        for name in ("net.onnx", DATA):
            link = tmp_path / "link"
            link.symlink_to(f"../../../blobs/{name[-4:]}-{suffix}")
            if suffix == "old":
                link.rename(snapshot / name)
            else:
                link.unlink()
    with agent.load(snapshot / "net.onnx", background=False) as session:
        assert not [note for note in session.notes if "whole" in note]
        for name in ("net.onnx", DATA):
            (snapshot / name).unlink()
            (snapshot / name).symlink_to(f"../../../blobs/{name[-4:]}-new")
        np.testing.assert_allclose(session.run(FEED)["y"], 2.0, rtol=1e-5)
        assert session.verify(FEED).correct
    with agent.load(snapshot / "net.onnx", background=False) as session:
        np.testing.assert_allclose(session.run(FEED)["y"], 3.0, rtol=1e-5)


def test_weights_in_many_files(tmp_path: Path) -> None:
    """More files than are kept open are found again by their path, as long as they are the same ones."""
    count = 40
    proto = network(2.0)
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(numpy_helper.from_array(np.full(4, k, np.float32), f"w{k}") for k in range(count))
    onnx.save(
        proto, tmp_path / "m.onnx", save_as_external_data=True, all_tensors_to_one_file=False, size_threshold=0,
    )  # fmt: skip
    gc.collect()  # or files that tests before this one dropped are closed meanwhile
    before = len(os.listdir("/proc/self/fd"))
    with Content(tmp_path / "m.onnx") as content:
        assert len(os.listdir("/proc/self/fd")) - before < count
        weights = [numpy_helper.to_array(tensor) for tensor in content.proto().graph.initializer]
        assert [array.tolist() for array in weights] == [[float(k)] * 4 for k in range(count)]
        os.replace(shutil.copy(tmp_path / f"w{count - 1}", tmp_path / "copy"), tmp_path / f"w{count - 1}")
        with pytest.raises(ModelError, match=f"w{count - 1}.*has changed"):
            content.proto()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_link_may_not_leave_the_folder(tmp_path: Path) -> None:
    """Weights that a link leads to are read below the network's folder and nowhere else, nor from what is no file."""
    save(2.0, tmp_path / "net", beside=True)
    (tmp_path / "net" / DATA).rename(tmp_path / "elsewhere")
    (tmp_path / "net" / DATA).symlink_to("../elsewhere")
    with pytest.raises(ModelError, match=r"external weights.*outside the model's folder"):
        read_network(tmp_path / "net" / "net.onnx")
    (tmp_path / "net" / DATA).unlink()
    os.mkfifo(tmp_path / "net" / DATA)
    with pytest.raises(ModelError, match="not a file"):
        read_network(tmp_path / "net" / "net.onnx")


def test_a_file_that_is_closed_while_it_is_read_closes_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session ends while its network is read behind it: the read ends well, and whatever was opened since stays."""
    path, other = tmp_path / "net.onnx", tmp_path / "other"
    path.write_bytes(b"weights")
    other.write_bytes(b"somebody else's")
    file, read, opened = HeldFile(path), os.pread, []

    def closing(handle: int, count: int, offset: int) -> bytes:
        file.close()
        opened.append(other.open("rb", buffering=0))
        return read(handle, count, offset)

    monkeypatch.setattr("agent_sdk.model.held.os.pread", closing)
    assert file.read() == b"weights"
    monkeypatch.undo()
    with opened[0] as left:
        assert left.read() == b"somebody else's"


def test_a_file_that_is_written_as_it_is_digested_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its time is put back: what stands there by then is not what was loaded."""
    path, read = tmp_path / "net.onnx", os.pread
    path.write_bytes(b"weights")
    file = HeldFile(path)

    def writing(handle: int, count: int, offset: int) -> bytes:
        before = path.stat()
        path.write_bytes(b"WEIGHTS")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        return read(handle, count, offset)

    monkeypatch.setattr("agent_sdk.model.held.os.pread", writing)
    with file, pytest.raises(ModelError, match="has changed"):
        file.digest()


def test_a_file_from_the_future_is_waited_for_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server's clock is ahead, or this one's was set back: it may be as new as one of just now."""
    path, waited = tmp_path / "net.onnx", []
    path.write_bytes(b"weights")
    monkeypatch.setattr("agent_sdk.model.held.time.time", lambda: 0.0)
    monkeypatch.setattr("agent_sdk.model.held.time.sleep", waited.append)
    with HeldFile(path) as file:
        assert waited == [TICK_S]
        assert file.read() == b"weights"
