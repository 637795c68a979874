"""A server that follows one plan of its networks or spreads them, and who is refused a plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner
from tritonclient import http

from agent_sdk.cli.serve import serve
from agent_sdk.scheduling.policies import DEFAULT
from tests.agent.models import branching_model
from tests.agent.server.running import HASTY, running


@pytest.mark.parametrize(
    ("models", "policy", "cure"),
    [
        ("a.onnx,b.onnx", "planned", "FILE@30fps"),
        ("a.onnx@30fps", "planned", "two or more"),
        ("a.onnx,b.onnx", "planned", f"{DEFAULT} needs no plan"),
        ("a.onnx@30fps,b.onnx", "planned", "FILE@30fps"),
        ("a.onnx@30fps,b.onnx@10fps", "least_slack", "--policy planned"),
        ("a.onnx@30fps,b.onnx@0fps", "planned", "above 0"),
    ],
)
def test_a_plan_needs_the_rates_of_all(models: str, policy: str, cure: str) -> None:
    """Without every network's rate there is nothing to plan, and other policies need none: both name the cure."""
    found = CliRunner().invoke(serve, ["--models", models, "--policy", policy])
    assert found.exit_code != 0
    assert cure in found.output + str(found.exception)


def test_networks_are_served_by_one_plan_of_them(tmp_path: Path) -> None:
    """Networks that were given with their rates are each answered right, whether or not they are asked for so often."""
    files = []
    for size in (4, 8):
        file = tmp_path / f"net{size}.onnx"
        file.write_bytes(branching_model(size).SerializeToString())
        files.append(Path(f"{file}@{size * 125}ms"))
    with running(files, tmp_path, "--policy", "planned", program=HASTY) as server:
        assert "planning all networks together ..." in server.said
        client = http.InferenceServerClient(f"127.0.0.1:{server.http}")
        for name in ("net4", "net8", "net4"):
            assert is_right(client, tmp_path / f"{name}.onnx")


def test_a_network_is_served_on_core_groups(tmp_path: Path) -> None:
    """A network that is spread is answered right, with a deadline by the group that the policy chooses."""
    file = tmp_path / "net.onnx"
    file.write_bytes(branching_model(4).SerializeToString())
    with running([file], tmp_path, "--spread", "--processors", "ort@0,ort@1", program=HASTY) as server:
        assert f"making {file} ready on core groups ..." in server.said
        client = http.InferenceServerClient(f"127.0.0.1:{server.http}")
        assert is_right(client, file)
        assert is_right(client, file, timeout=10_000_000)


def is_right(client: http.InferenceServerClient, file: Path, **terms: int) -> bool:
    """Whether a server answers as plain ONNX Runtime does."""
    about = client.get_model_metadata(file.stem)
    port, wanted = about["inputs"][0], about["outputs"][0]["name"]
    feed = np.linspace(-1, 1, int(np.prod(port["shape"])), dtype=np.float32).reshape(port["shape"])
    given = http.InferInput(port["name"], port["shape"], port["datatype"])
    given.set_data_from_numpy(feed)
    (right,) = onnxruntime.InferenceSession(file).run([wanted], {port["name"]: feed})
    return np.allclose(client.infer(file.stem, [given], **terms).as_numpy(wanted), right, atol=1e-4)
