"""A mix: which networks are asked for how often, and until when; a JSON file, or one line."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError, model_validator

from agent_sdk.errors import InputError
from agent_sdk.scheduling.request import PRIORITY, Late
from agent_sdk.tables import Table, faults

MOST_BYTES: Final = 4 * 2**20
"""A mix file is no larger."""
MOST_RELEASES: Final = 1_000_000
"""Runs that the streams of a mix ask for at most by themselves."""
Milliseconds = Annotated[float, Field(gt=0, lt=1e9, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class After(Table):
    """A stream that begins a run when one of another stream has ended, with some probability."""

    stream: Name
    probability: Annotated[float, Field(gt=0, le=1)] = 1.0


class Stream(Table):
    """Runs of one network.

    Attributes:
        name: of the stream.
        model: the network: a file, or a name of the zoo.
        shape: sizes of inputs that the file leaves open.
        period_ms: between two runs; of ``poisson`` on average.
        deadline_ms: from a run's release on; by default its period. Closed loops and followers have none by default.
        jitter_ms: a periodic run is released up to so much later than its time.
        arrival: when runs are released: each period, at random, when the one before has ended, or as in ``trace_ms``.
        trace_ms: releases of a ``trace``, from the start of the mix on.
        after: begins runs when those of another stream end; then no other arrival is given.
        priority: the highest goes first.
        on_late: what becomes of a run that cannot make its deadline.
    """

    name: Name
    model: Name
    shape: Mapping[str, tuple[Annotated[int, Field(gt=0)], ...]] = {}
    period_ms: Milliseconds | None = None
    deadline_ms: Milliseconds | None = None
    jitter_ms: Annotated[float, Field(ge=0, lt=1e9, allow_inf_nan=False)] = 0.0
    arrival: Literal["periodic", "poisson", "closed", "trace"] = "periodic"
    trace_ms: Annotated[tuple[Annotated[float, Field(ge=0, lt=1e9)], ...], Field(max_length=MOST_RELEASES)] = ()
    after: After | None = None
    priority: Annotated[int, Field(ge=-PRIORITY, le=PRIORITY)] = 0
    on_late: Late = "late"

    @model_validator(mode="after")
    def _has_arrivals(self) -> Stream:
        timed = self.arrival in ("periodic", "poisson") and self.after is None
        if timed and self.period_ms is None:
            raise ValueError(f"stream '{self.name}' is {self.arrival} and has no period_ms")
        if self.arrival == "trace" and not self.trace_ms:
            raise ValueError(f"stream '{self.name}' is a trace and has no trace_ms")
        if self.after is not None and self.arrival != "periodic":
            raise ValueError(f"stream '{self.name}' is {self.arrival} and comes after another: it can be one of them")
        return self

    @property
    def due_ms(self) -> float | None:
        """The deadline of its runs, from their release on."""
        return self.deadline_ms or (self.period_ms if self.after is None and self.arrival != "closed" else None)

    def releases(self, seconds: float, seed: int) -> list[float]:
        """When its runs are released, milliseconds from the start; nothing for what waits for ends of runs."""
        end, draw = seconds * 1e3, random.Random(f"{seed}/{self.name}")
        if self.after is not None or self.arrival == "closed":
            return []
        if self.arrival == "trace":
            return sorted(at for at in self.trace_ms if at < end)
        period = self.period_ms
        assert period is not None
        found, at = list[float](), 0.0
        if self.arrival == "poisson":
            while (at := at + draw.expovariate(1 / period)) < end:
                found.append(at)
            return found
        for count in range(int(end / period) + 1):
            at = count * period + (draw.uniform(0, self.jitter_ms) if self.jitter_ms else 0.0)
            if at < end:
                found.append(at)
        return sorted(found)


class Mix(Table):
    """Streams that run at the same time.

    Attributes:
        version: of this format.
        name: as told to people.
        seconds: how long it lasts.
        streams: with distinct names; nobody comes after himself, by whatever way.
    """

    version: Literal[1] = 1
    name: Name = "mix"
    seconds: Annotated[float, Field(gt=0, le=86_400)] = 20.0
    streams: Annotated[tuple[Stream, ...], Field(min_length=1, max_length=64)]

    @model_validator(mode="after")
    def _is_whole(self) -> Mix:
        names = [stream.name for stream in self.streams]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"streams stand twice: {', '.join(sorted(twice))}")
        before = {stream.name: stream.after.stream for stream in self.streams if stream.after is not None}
        for name in before:
            seen, at = {name}, before[name]
            while at in before and at not in seen:
                seen.add(at)
                at = before[at]
            if at in seen:
                raise ValueError(f"stream '{name}' comes after itself, by way of {', '.join(sorted(seen))}")
            if at not in names:
                raise ValueError(f"stream '{name}' comes after '{at}', which is not in the mix")
        asked = sum(self.seconds * 1e3 / stream.period_ms for stream in self.streams if stream.period_ms is not None)
        if asked > MOST_RELEASES:
            raise ValueError(f"the streams ask for {asked:.9g} runs, more than {MOST_RELEASES}")
        return self

    def scaled(self, factor: float) -> Mix:
        """The same with all periods, deadlines, jitters and traces so many times as long. Raises InputError where that
        is no mix: of more runs than there may be, or with times beyond bounds.
        """
        streams = []
        for stream in self.streams:
            times = {name: getattr(stream, name) for name in ("period_ms", "deadline_ms", "jitter_ms")}
            longer: dict[str, object] = {name: ms and ms * factor for name, ms in times.items()}
            longer["trace_ms"] = [at * factor for at in stream.trace_ms]
            streams.append(stream.model_dump() | longer)
        return _validated(self.model_dump() | {"streams": streams}, f"{self.name} with times {factor:g} as long")

    def load(self, alone_ms: Mapping[str, float]) -> float:
        """Σ latency alone ÷ period, over the streams that have a period; ``alone_ms`` is by name of the stream."""
        return sum(alone_ms[one.name] / one.period_ms for one in self.streams if one.period_ms is not None)

    def at_load(self, load: float, alone_ms: Mapping[str, float]) -> Mix:
        """The same mix with its times scaled by one factor so that its load is ``load``.

        Raises InputError where no stream has a period, or like ``scaled``.
        """
        now = self.load(alone_ms)
        if not now:
            raise InputError(f"mix '{self.name}' has no stream with a period, so it has no load to be scaled")
        return self.scaled(now / load)

    def followers(self, name: str) -> Iterator[Stream]:
        """The streams that begin a run when one of this stream ends."""
        return (one for one in self.streams if one.after is not None and one.after.stream == name)


_LINE: Final = re.compile(r"(?P<model>[^@,]+)(@(?P<rate>[0-9.]+)(?P<unit>fps|ms))?")


def read_rate(given: str) -> tuple[str, float | None]:
    """A network and its period in milliseconds, from ``a@30fps``, ``a@100ms`` or ``a``. Raises InputError."""
    found = _LINE.fullmatch(given.strip())
    if found is None:
        raise InputError(f"'{given}' is no stream: MODEL@30fps, MODEL@100ms, MODEL, or a file that ends in .json")
    if (rate := found["rate"]) is None:
        return found["model"], None
    try:
        return found["model"], 1e3 / float(rate) if found["unit"] == "fps" else float(rate)
    except (ValueError, ZeroDivisionError) as error:
        raise InputError(f"'{given}': '{rate}' is no rate above 0") from error


def read_mix(given: str, seconds: float | None = None) -> Mix:
    """A mix from a JSON file, or from a line like ``a@30fps,b@100ms,c``: frames a second, a period, or a closed loop.

    Raises InputError, which says what is wrong.
    """
    if given.endswith(".json"):
        mix = _read_file(Path(given))
        return mix if seconds is None else _validated(mix.model_dump() | {"seconds": seconds}, given)
    streams: list[dict[str, object]] = []
    names = Counter[str]()
    for part in given.split(","):
        model, period_ms = read_rate(part)
        name = Path(model).stem if model.endswith(".onnx") else model
        names[name] += 1
        stream: dict[str, object] = {"name": f"{name}#{names[name]}" if names[name] > 1 else name, "model": model}
        stream |= {"arrival": "closed"} if period_ms is None else {"period_ms": period_ms}
        streams.append(stream)
    return _validated({"streams": streams} | ({} if seconds is None else {"seconds": seconds}), given)


def _read_file(path: Path) -> Mix:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"the mix file '{path}' is larger than {MOST_BYTES} bytes")
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read the mix file '{path}': {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"the mix file '{path}' is no JSON: {error}") from error
    if isinstance(data, dict) and data.get("version", 1) != 1:
        raise InputError(f"the mix file '{path}' is of version {data['version']!r}; this agent reads version 1")
    return _validated(data, str(path))


def _validated(data: object, given: str) -> Mix:
    try:
        return Mix.model_validate(data)
    except ValidationError as error:
        raise InputError(f"'{given[:200]}' is no mix: {'; '.join(islice(faults(error), 3))}") from error
