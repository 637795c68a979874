"""Bodies that are read elsewhere: once, remembered in so many bytes, and each pays for what it takes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from io import BufferedRandom, FileIO

import pytest
import zstandard
from structlog.testing import capture_logs

from planner_api.errors import UnavailableError
from planner_api.jobs.process import Tell
from planner_api.web import body
from planner_api.web.errors import HttpError
from planner_api.web.inflate import Body, inflate
from planner_api.web.reader import Reader
from tests import CAMPAIGN
from tests.planner.entries import kept_waiting, read_for_ever, read_whole, read_wrongly
from tests.planner.samples import serving

LIMIT = 16 * 2**20 if CAMPAIGN else 2**18


def received(text: bytes) -> Callable[[], Body]:
    """A body as it came."""
    return lambda: Body(text, "identity")


def asked_of(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The tasks that a reader's child is given from now on."""
    asked = list[bytes]()

    async def noted(task: bytes, tell: Tell | None) -> bytes:
        asked.append(task)
        return await Reader.ask(reader, task, tell)

    monkeypatch.setattr(reader, "ask", noted)
    return asked


def test_what_was_costly_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same content, whoever sends it, costs its reading once: what was found is said again, and so is a refusal."""
    monkeypatch.setattr("planner_api.web.reader.PATIENCE", 1000)

    async def main() -> None:
        reader = Reader(limit=LIMIT, timeout_s=10.0, memory_bytes=256 * 2**20, refused=Counter())
        asked = asked_of(reader, monkeypatch)
        try:
            for owner in ("a", "b", "c"):
                assert (await reader.read(owner, kept_waiting, received(b"{}"))).count == 2
            assert len(asked) == 1
            assert (await reader.read("a", kept_waiting, received(b"[1]"))).count == 3
            reader._timeout_s = 0.3
            for owner in ("a", "b"):
                with pytest.raises(HttpError, match=r"more than 0\.3 s"):
                    await reader.read(owner, read_for_ever, received(b"{}"))
            assert len(asked) == 3
        finally:
            await reader.kill()

    asyncio.run(main())


def test_answers_are_remembered_in_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found of bodies is kept up to a size, the newest of it, and nothing that takes an eighth by itself."""
    monkeypatch.setattr("planner_api.web.reader.COSTLY_S", 0.0)
    monkeypatch.setattr("planner_api.web.reader.REMEMBERED_BYTES", 8000)

    async def main() -> None:
        reader = Reader(limit=LIMIT, timeout_s=10.0, memory_bytes=256 * 2**20, refused=Counter())
        asked = asked_of(reader, monkeypatch)

        async def read(text: bytes) -> int:
            """How often the child was asked so far, once this has been read."""
            assert (await reader.read("a", read_whole, received(text))).text == text
            return len(asked)

        try:
            small = [b"%03d" % number * 300 for number in range(20)]  # 18 000 bytes
            assert [await read(text) for text in small] == list(range(1, 21))
            assert await read(small[-1]) == 20
            assert await read(small[0]) == 21
            assert [await read(bytes(1200)) for _ in range(2)] == [22, 23]
            assert reader._answers.currsize <= 8000
        finally:
            await reader.kill()

    asyncio.run(main())


def test_a_body_pays_for_what_it_takes_and_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that computes for too long is refused and its process killed; one that a busy machine keeps waiting is read,
    and where it keeps it waiting for ever, that is no fault of the body's.
    """
    monkeypatch.setattr("planner_api.web.reader.PATIENCE", 1000)

    async def main() -> None:
        reader = Reader(limit=LIMIT, timeout_s=10.0, memory_bytes=256 * 2**20, refused=Counter())
        texts = iter([b"{}", b"[]", b"{}", b"0.", b"10"])
        try:
            assert (await reader.read("a", kept_waiting, received(next(texts)))).count == 2  # and has loaded the module
            reader._timeout_s = 0.2
            assert (await reader.read("a", kept_waiting, received(next(texts)))).count == 2
            with pytest.raises(HttpError, match=r"more than 0\.2 s") as refused:
                await reader.read("a", read_for_ever, received(next(texts)))
            assert (refused.value.status, refused.value.kind) == (413, "body-too-costly")
            reader._timeout_s = 10.0
            assert (await reader.read("a", kept_waiting, received(next(texts)))).count == 2, (
                "the next one gets a new process"
            )
            monkeypatch.setattr("planner_api.web.reader.PATIENCE", 0.01)
            with pytest.raises(UnavailableError, match="too busy"):
                await reader.read("a", kept_waiting, received(next(texts)))
        finally:
            await reader.kill()

    asyncio.run(main())


def test_why_a_body_was_not_read_is_in_the_log() -> None:
    """Its sender is told that it costs too much; the log has the cause, which may be a fault of the reading's."""

    async def main() -> None:
        reader = Reader(limit=LIMIT, timeout_s=10.0, memory_bytes=256 * 2**20, refused=Counter())
        try:
            with pytest.raises(HttpError, match="too much memory to read"):
                await reader.read("a", read_wrongly, received(b"{}"))
        finally:
            await reader.kill()

    with capture_logs() as said:
        asyncio.run(main())
    assert [line["cause"] for line in said if line["event"] == "body_not_read"] == [
        "ZeroDivisionError: division by zero"
    ]


def test_what_says_that_it_is_too_large_is_not_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame's own word for its size is enough to refuse it, and none is not enough to take it in."""
    text = bytes(3 * 2**20)
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(text)
    with pytest.raises(HttpError) as refused:
        inflate(Body(silent, "zstd"), limit=2**20)
    assert refused.value.status == 413
    monkeypatch.setattr("planner_api.web.inflate._pieces", lambda *_: pytest.fail("it was inflated"))
    with pytest.raises(HttpError) as refused:
        inflate(Body(zstandard.compress(text), "zstd"), limit=2**20)
    assert refused.value.status == 413


def test_a_body_that_there_is_no_room_for_comes_again(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where large bodies are put on disk and that is full, the sender is told to try again, not that we failed."""
    monkeypatch.setattr(body, "SpooledTemporaryFile", lambda max_size: BufferedRandom(FileIO("/dev/full", "r+")))
    with serving(sqlite_url) as api:
        refused = api.post("/models", b" " * (body.SMALL_BYTES + 100_000))
    assert (refused.status_code, refused.headers.get("retry-after")) == (503, "30")
    assert "disk is full" in refused.text
