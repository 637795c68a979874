"""What the guides tell people to type does what they say."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hope_schema import NewModelVersion
from tests.planner.commanding import commanding
from tests.planner.samples import QUICK, chain, make_token, serving

README = Path(__file__).parents[2] / "README.md"
DOCS = README.parent / "docs"


def block(page: str, heading: str = "") -> list[str]:
    """The lines of the first block of commands of a page, below a heading where one is named."""
    text = (DOCS / page).read_text().partition(heading)[2] if heading else (DOCS / page).read_text()
    return text.partition("```sh\n")[2].partition("```")[0].splitlines()


def filled(text: str, known: Mapping[str, str]) -> str:
    """A text with what its variables stand for."""
    return re.sub(r"\$([A-Z]+)", lambda found: known[found[1]], text)


@pytest.mark.parametrize("page", [README, *sorted(DOCS.glob("*.md"))], ids=lambda page: page.stem)
def test_what_a_page_imports_is_there(page: Path) -> None:
    """Each name that a block of Python imports from a package of ours exists."""
    for code in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for line in re.findall(r"^ *((?:from|import) (?:agent_sdk|planner_api|hope_schema)\b.*)$", code, re.MULTILINE):
            exec(line, {})


def test_the_calls_that_another_language_needs(sqlite_url: str) -> None:
    """Each curl of the page is answered, given what the answers before it said."""
    with serving(sqlite_url, works=QUICK) as api:
        known = {"PLANNER": "", "CLAIM": make_token(api, "claim")}
        graph = chain()
        assert api.learn(graph)
        api.plan(graph)
        api.post("/names/classifier/versions", NewModelVersion(model_hash=graph.model_hash))
        api.client.put("/names/classifier/aliases/production", json={"version": 1})
        answers: list[Any] = []
        for line in (line for line in block("http.md") if line.startswith("curl")):
            words = [filled(word, known) for word in shlex.split(re.sub(r"'(\$\w+)'", r"\1", line))]
            path = next(word for word in words if word.startswith("/"))
            options = dict(pairwise(words))
            heads = [words[at + 1].split(": ", 1) for at, word in enumerate(words) if word == "-H"]
            method = options.get("-X") or ("POST" if "-d" in options else "GET")
            answer = api.client.request(method, path, content=options.get("-d"), headers=dict(heads))
            assert answer.status_code < 400, (path, answer.text)
            answers.append(answer)
            found = answer.json() if answer.content else {}
            known |= {"HASH": found["model_hash"]} if path == "/models" else {}
            if path == "/profiles/missing":
                known |= {"SIGNATURE": found["latencies"][0]["signature"], "KIND": found["latencies"][0]["kind"]}
            known |= {"PLAN": found["plan_id"], "ETAG": answer.headers["etag"]} if path == "/plans" else {}
        assert [answer.status_code for answer in answers] == [201, 201, 200, 202, 200, 304, 204, 200]


def test_a_first_release_comes_to_be(sqlite_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The guide's commands, one after the other, let an alias come to stand for a second version and return."""
    with serving(sqlite_url, works=QUICK) as api:
        hashes = []
        for graph in (chain(3, "first"), chain(4, "second")):
            api.learn(graph)
            api.plan(graph)
            hashes.append(graph.model_hash)
        known = dict(zip(("FIRST", "SECOND"), hashes, strict=True))
        meant = []
        with commanding(api, capsys) as say:
            for line in block("releases.md", "## Your first release"):
                if not (found := re.match(r"(RELEASE=\$\()?hope-planner ([^|)#]+)", line)) or "serve" in line:
                    continue
                said = say(*filled(found[2], known).split())
                if found[1]:
                    known["RELEASE"] = json.loads(said)["release_id"]
                reply = api.client.get("/references/classifier@production")
                meant.append(reply.json()["version"] if reply.status_code == 200 else None)
        assert (meant[-2], meant[-1]) == (2, 1)
