"""The command line: what it refuses, how it says so, and what it prints."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import onnx
import pytest

from agent_sdk import paths
from agent_sdk.cli import commands as cli
from agent_sdk.cli import main
from agent_sdk.errors import UnknownNameError, status_error
from agent_sdk.planner.client import PlannerClient
from agent_sdk.runtimes.offered import discover
from hope_schema.version import VERSION
from planner_api.cli.commands import hope_planner
from tests.agent.haste import measure_hastily
from tests.agent.models import branching_model, one_op_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep everything the command line writes inside the test's directory."""
    monkeypatch.setenv("HOPE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command line, expect exit code 2 and one clear line, and return that line."""
    assert cli.main(arguments) == cli.BAD_INPUT
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if line.startswith("hope-agent: ")]
    assert len(lines) == 1
    return lines[0]


def test_help_of_all_commands_loads_none(capsys: pytest.CaptureFixture[str]) -> None:
    """``--help`` says of each command what the command says of itself, and loads neither it nor a runtime."""
    called = "import sys; from agent_sdk.cli import main; main(['--help']); print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", called], capture_output=True, text=True, check=True).stdout
    assert not {"numpy", "onnxruntime", "rich", "agent_sdk.agent", "agent_sdk.cli.run"} & set(shown.split())
    context = click.Context(cli.hope_agent)
    for name, said in cli.COMMANDS.items():
        command = cli.hope_agent.get_command(context, name)
        assert command is not None
        assert command.help is not None
        assert command.help.split("\n")[0].startswith(said.rstrip("."))
        assert said in shown


def test_serve_helps_without_its_extra() -> None:
    """Without the packages of its extra ``serve`` shows its help; when it is to serve, one sentence names the extra."""
    absent = "import sys; sys.modules |= dict.fromkeys(('grpc', 'prometheus_client'))"
    called = f"{absent}; from agent_sdk.cli import main; print(main(['serve', '--help']), main(['serve', '--lend']))"
    done = subprocess.run([sys.executable, "-c", called], capture_output=True, text=True, check=True)
    assert "--listen" in done.stdout
    assert done.stdout.endswith(f"{cli.OK} {cli.BAD_INPUT}\n")
    assert done.stderr.endswith("serve needs its extra: pip install 'hope-inference[serve]'\n")
    assert done.stderr.count("\n") == 1


def test_an_address_in_use_is_refused_before_anything_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    """``serve`` names the option whose address another program has, and the cure, before it looks at the network."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        for option, free in (("--listen", "--grpc"), ("--grpc", "--listen")):
            line = refused(capsys, "serve", "--models", "none.onnx", option, address, free, "127.0.0.1:0")
            assert (
                f"{option}: cannot listen on {address}: Address already in use; give {option} another HOST:PORT" in line
            )


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """A command and all that are below it."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, f"{path} {name}")


@pytest.mark.parametrize("program", [cli.hope_agent, hope_planner], ids=lambda program: program.name)
def test_no_list_of_commands_cuts_a_sentence(program: click.Group) -> None:
    """In 80 columns each command of each group says in whole what it does."""
    for path, command in commands(program, ""):
        if isinstance(command, click.Group):
            shown = command.get_help(click.Context(command, terminal_width=80)).splitlines()
            assert not [f"{path}: {line}" for line in shown[1:] if line.endswith("...")]


def test_help_explains_every_option() -> None:
    """Each option of each command, and of those below it, says what it is for and in which unit."""
    found = [
        (path, option)
        for path, command in commands(cli.hope_agent, "hope-agent")
        for option in command.params
        if isinstance(option, click.Option)
    ]
    assert len(found) > 40
    assert not [f"{path} {option.name}" for path, option in found if not option.help]
    ranges = (click.IntRange, click.FloatRange)
    assert not [
        f"{path} {option.name}" for path, option in found if isinstance(option.type, ranges) and not option.metavar
    ]


def broken_models(directory: Path) -> dict[str, tuple[Path, str]]:
    """Return files that are no runnable models, with a word their complaint must hold."""
    good = branching_model().SerializeToString()
    without_outputs = branching_model()
    del without_outputs.graph.output[:]
    contents = {
        "text": (b"this is not a model", "not an ONNX model"),
        "empty": (b"", "empty"),
        "truncated": (good[: len(good) // 2], "cut off"),
        "no_outputs": (without_outputs.SerializeToString(), "output"),
        "dynamic": (one_op_model(shape=(1, "length")).SerializeToString(), "x"),
        "unknown_op": (one_op_model("Frobnicate").SerializeToString(), "Frobnicate"),
        "unknown_domain": (one_op_model("Frobnicate", "com.example").SerializeToString(), "Frobnicate"),
    }
    files = {}
    for name, (data, word) in contents.items():
        path = directory / f"{name}.onnx"
        path.write_bytes(data)
        files[name] = (path, word)
    return files


@pytest.mark.parametrize(
    "name", ["text", "empty", "truncated", "no_outputs", "dynamic", "unknown_op", "unknown_domain"]
)
def test_a_broken_model_is_refused_by_name(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every kind of broken model costs one line that names what is wrong, and exit code 2."""
    path, word = broken_models(tmp_path)[name]
    line = refused(capsys, "run", "--model", str(path), "--processors", "ort@0")
    assert word.lower() in line.lower()


def test_a_missing_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A path that leads nowhere, or to no file, is said to, instead of being taken for a zoo network."""
    assert "no model file" in refused(capsys, "run", "--model", "no/such/model.onnx")
    assert "is a directory" in refused(capsys, "run", "--model", str(tmp_path))


def one_array() -> bytes:
    """A ``.npy`` file."""
    file = io.BytesIO()
    np.save(file, np.ones((1, 4), np.float32))
    return file.getvalue()


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (None, "No such file"),
        (b"text", "numpy.savez writes one"),
        (one_array(), "numpy.savez writes one"),
        ({"other": np.ones((1, 4), np.float32)}, "there is no input 'other'; inputs: x"),
    ],
)
def test_an_input_file_that_does_not_fit_is_refused(
    arrays: dict[str, np.ndarray] | bytes | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is not there, is no ``.npz`` or has other names costs one line with the cause."""
    model, given = tmp_path / "net.onnx", tmp_path / "given.npz"
    model.write_bytes(one_op_model(shape=(1, 4)).SerializeToString())
    if isinstance(arrays, bytes):
        given.write_bytes(arrays)
    elif arrays is not None:
        np.savez(given, **arrays)
    assert words in refused(capsys, "run", str(model), "--input", str(given), "--processors", "ort@0")


def test_a_complaint_is_one_printable_line(capsys: pytest.CaptureFixture[str]) -> None:
    """What stands in a name cannot command the terminal that the complaint is printed on."""
    assert "'no/?[31m such.onnx'" in refused(capsys, "run", "--model", "no/\x1b[31m\nsuch.onnx")


def test_a_misspelt_name_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt network and a misspelt processor are answered with the closest names."""
    assert "did you mean inception_v1" in refused(capsys, "run", "--model", "incption_v1")
    assert "ort@0" in refused(capsys, "run", "--model", "squeezenet", "--processors", "ort@99")
    with pytest.raises(UnknownNameError, match="unknown precision 'fp15'; did you mean fp16"):
        discover("ort@0", precision="fp15")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--planner", "not-a-url"), "planner address"),
        (("--soc", "has spaces"), "soc"),
        (("--frequency", "has/../$"), "frequency"),
        (("--trace", "/no/such/directory/t.json"), "directory"),
        (("--trace", "/"), "is a directory"),
    ],
)
def test_bad_options_are_refused(arguments: tuple[str, str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Options that cannot work are refused before anything is measured."""
    assert word in refused(capsys, "run", "--model", "squeezenet", *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("run",),
        ("run", "lstm", "--model", "lstm"),
        ("run", "--model", "lstm", "--shape", "x"),
        ("run", "--model", "lstm", "--runs", "0"),
        ("run", "--model", "lstm", "--method", "magic"),
        ("run", "--model", "lstm", "--tolerance", "0"),
        ("run", "--model", "lstm", "--tolerance", "nan"),
        ("run", "--model", "lstm", "--tolerance", "much"),
        ("zoo",),
    ],
)
def test_misuse_exits_with_2(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments that make no command cost the same exit code as other bad input, and show how to call it."""
    assert cli.main(arguments) == cli.BAD_INPUT
    out, err = capsys.readouterr()
    assert out == ""
    assert "Usage: hope-agent" in err


def test_what_is_not_installed_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the extra brings may be missing in part, and the extra is named."""
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.delitem(sys.modules, "agent_sdk.cli.report", raising=False)
    monkeypatch.delitem(sys.modules, "agent_sdk.cli.zoo", raising=False)
    assert main(["zoo", "list"]) == cli.BAD_INPUT
    told = capsys.readouterr().err
    assert told.count("rich.console") == 1
    assert "pip install 'hope-inference[cli]'" in told


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """``--help`` succeeds, shows a command to copy, and lists every exit code; ``--version`` names this one."""
    assert cli.main(["--help"]) == cli.OK
    shown = capsys.readouterr().out
    assert "hope-agent run inception_v1 --compare" in shown
    assert "a planner that refuses or is away" in shown.partition("\n    1 ")[2].splitlines()[0]
    for code in (cli.OK, cli.FAILED, cli.BAD_INPUT, cli.INTERRUPTED):
        assert f"\n    {code} " in shown
    assert cli.main(["--version"]) == cli.OK
    assert capsys.readouterr().out == f"hope-agent {VERSION}\n"


def test_a_program_of_its_own_says_all_and_ends() -> None:
    """What is printed into a pipe arrives, and the exit code is the command's, although nothing is taken down."""
    for given, code, said in (
        (["--version"], cli.OK, VERSION),
        (["run", "no/such.onnx"], cli.BAD_INPUT, "no/such.onnx"),
    ):
        command = [sys.executable, "-m", "agent_sdk.cli", *given]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert said in done.stdout + done.stderr


def test_what_is_printed_to_nobody_is_no_failure() -> None:
    """Who closes a program's outputs wants its exit code."""
    command = shlex.join([sys.executable, "-m", "agent_sdk.cli", "--version"])
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        done = subprocess.run(f"exec {command} {closed}", shell=True, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (cli.OK, "")


def test_devices_are_listed_as_the_agent_plans_with_them(capsys: pytest.CaptureFixture[str]) -> None:
    """``devices --json`` prints one object whose processors have distinct ids and real resources."""
    assert cli.main(["devices", "--json"]) == cli.OK
    listed = json.loads(capsys.readouterr().out)
    ids = [processor["id"] for processor in listed["processors"]]
    assert "ort@0" in ids or any(name.startswith("ort@") for name in ids)
    assert len(set(ids)) == len(ids)
    assert all(processor["resources"] for processor in listed["processors"])


def test_the_zoo_builds_what_it_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A listed network can be written to a file, and the file is a valid model."""
    assert cli.main(["zoo", "list", "--json"]) == cli.OK
    names = {model["name"] for model in json.loads(capsys.readouterr().out)["models"]}
    assert {"inception_v1", "nasnet_large", "lstm", "squeezenet"} <= names
    target = tmp_path / "squeezenet.onnx"
    assert cli.main(["zoo", "build", "squeezenet", "--output", str(target)]) == cli.OK
    onnx.checker.check_model(onnx.load(target))


def test_ctrl_c_ends_the_command_with_130(tmp_path: Path) -> None:
    """SIGINT to a process that runs a plan: the shell's usual code, one word, no traceback, nothing left running."""
    path = tmp_path / "branching.onnx"
    onnx.save(branching_model(), path)
    command = (
        "import sys, pytest; from tests.agent.haste import measure_hastily; measure_hastily(pytest.MonkeyPatch()); "
        "from agent_sdk.cli.commands import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["run", "--model", str(path), "--processors", "ort@0,ort@1", "--method", "greedy", "--runs", "100000"]
    environment = {**os.environ, "HOPE_SOLVE_BUDGET_S": "0.3", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", command, *arguments],
        cwd=Path(__file__).parents[3],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        told = []
        for line in process.stderr:
            told.append(line)
            if line.startswith("timing"):
                break
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=180)
    assert process.returncode == cli.INTERRUPTED, "".join(told) + rest
    assert "hope-agent: interrupted" in rest
    assert "Traceback" not in rest
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.parametrize(
    ("typed", "offered"), [("run squeeze", "plain,squeezenet"), ("ru", "plain,run"), ("run lstm --pre", "--precision")]
)
def test_a_shell_completes(typed: str, offered: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What ``hope-agent completion bash`` installs is answered with commands, options and networks."""
    words = typed.split()
    asked = {
        "_HOPE_AGENT_COMPLETE": "bash_complete",
        "COMP_WORDS": f"hope-agent {typed}",
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [sys.executable, "-m", "agent_sdk.cli"], env=os.environ | asked, capture_output=True, text=True, check=False
    )
    assert offered in done.stdout
    assert cli.main(["completion", "bash"]) == cli.OK
    assert "_HOPE_AGENT_COMPLETE=bash_complete" in capsys.readouterr().out


def test_a_claim_is_not_spent_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the token could not be kept, ``enrol`` says so before it shows the claim to anybody."""
    in_the_way = tmp_path / "a-file"
    in_the_way.write_text("")
    monkeypatch.setenv("HOPE_CACHE_DIR", str(in_the_way))
    monkeypatch.setattr(PlannerClient, "enrol", lambda *given: pytest.fail("the claim was spent"))
    line = refused(capsys, "enrol", "--planner", "http://127.0.0.1:9", "--claim", "a-claim")
    assert "not enrolled" in line
    assert str(in_the_way) in line


REFUSALS = [
    *dict.fromkeys((401, 403, 404, 409, 429, 503), cli.FAILED).items(),
    (400, cli.BAD_INPUT),
    (422, cli.BAD_INPUT),
]


@pytest.mark.parametrize(("status", "code"), REFUSALS)
def test_a_planner_that_refuses_is_not_bad_input(
    status: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It exits with 1, as where none answers; with 2 where the planner finds that what was given cannot be."""

    def answered(*given: object) -> None:
        raise status_error(status, None, None)

    enrol = ["enrol", "--planner", "http://127.0.0.1:9", "--claim", "a-claim"]
    assert cli.main(enrol) == cli.FAILED
    assert "no answer from the planner" in capsys.readouterr().err
    monkeypatch.setattr(PlannerClient, "enrol", answered)
    assert cli.main(enrol) == code
    assert f"planner answered {status}" in capsys.readouterr().err


def test_files_have_one_home(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """``HOPE_CACHE_DIR`` moves everything that the agent keeps; ``HOPE_ZOO`` moves built networks elsewhere."""
    monkeypatch.delenv("HOPE_ZOO", raising=False)
    assert paths.cache_directory() == paths.state_directory() == cache
    assert paths.zoo_directory() == cache / "zoo"
    monkeypatch.setenv("HOPE_ZOO", str(tmp_path))
    assert paths.zoo_directory() == tmp_path


@pytest.fixture
def open_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A network whose input's last dimension is open; it is measured and planned in no time."""
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "0.3")
    measure_hastily(monkeypatch)
    file = tmp_path / "open.onnx"
    file.write_bytes(one_op_model("Relu", shape=(1, "n")).SerializeToString())
    return file


def test_a_network_with_open_shapes_and_one_that_runs_whole(
    open_network: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--shape`` and ``--input`` bind what a file leaves open; what cannot be planned is run, checked and said."""
    run = ["run", "--model", str(open_network), "--processors", "ort@0", "--quiet", "--runs", "2", "--json"]
    assert cli.main(run) == 2
    assert "--shape" in capsys.readouterr().err
    assert cli.main(["mix", f"{open_network}@10fps", *run[3:6]]) == 2
    assert 'in the file of a mix "shape"' in capsys.readouterr().err
    assert cli.main([*run, "--shape", "x=1,4"]) == 0
    assert json.loads(capsys.readouterr().out)["correct"] is True
    np.savez(open_network.with_name("x.npz"), x=np.ones((1, 5), np.float32))
    assert cli.main([*run, "--input", str(open_network.with_name("x.npz"))]) == 0
    assert cli.main([*run, "--shape", "x=1,2,3"]) == 2
    assert cli.main([*run, "--input", str(open_network)]) == 2
    nonzero = one_op_model("NonZero", shape=(1, 4))
    nonzero.graph.output[0].type.tensor_type.elem_type = 7
    nonzero.graph.output[0].type.tensor_type.ClearField("shape")
    open_network.write_bytes(nonzero.SerializeToString())
    capsys.readouterr()
    trace = open_network.with_name("trace.json")
    assert cli.main([*run, "--trace", str(trace)]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report["executed"] == "whole:onnxruntime"
    assert report["measured_us"] > 0
    assert "(NonZero)" in report["notes"][0]
    assert "no trace" in err
    assert not trace.exists()
    assert cli.main(["explain", str(open_network), "--processors", "ort@0", "--quiet"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "(NonZero)" in line


def test_several_shapes_are_prepared_ahead(open_network: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``prepare`` says of every set of shapes who answers; a later start finds each plan, and takes one set only."""
    given = [str(open_network), "--processors", "ort@0", "--quiet"]
    assert cli.main(["prepare", *given, "--shape", "x=1,4", "--shape", "x=1,5"]) == cli.OK
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["x=1,4", "x=1,5"]
    for shape in ("x=1,4", "x=1,5"):
        assert cli.main(["run", *given, "--runs", "1", "--json", "--shape", shape]) == cli.OK
        report = json.loads(capsys.readouterr().out)
        assert (report["plan_cached"], report["profiled_signatures"]) == (True, 0)
    assert cli.main(["run", *given, "--shape", "x=1,4", "--shape", "x=1,5"]) == cli.BAD_INPUT
    assert "hope-agent prepare" in capsys.readouterr().err


def test_a_network_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``explain`` prints a row per op or one JSON object, and writes a page, unless that is known not to work."""
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "0.3")
    measure_hastily(monkeypatch)
    file = tmp_path / "branching.onnx"
    file.write_bytes(branching_model().SerializeToString())
    given = ["explain", str(file), "--processors", "ort@0", "--quiet"]
    assert "directory" in refused(capsys, *given, "--html", "/no/such/directory/page.html")
    assert cli.main([*given, "--json", "--html", str(tmp_path / "page.html")]) == cli.OK
    told = json.loads(capsys.readouterr().out)
    assert {row["processor"] for row in told["ops"]} == {"ort@0"}
    assert "</html>" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert cli.main(given) == cli.OK
    table = capsys.readouterr().out
    assert all(row["op"] in table and row["why"] in table for row in told["ops"])
    assert told["why"] in table
