"""Stands in for the package ``onnxruntime``: ``import agent_sdk.onnxruntime as onnxruntime``.

Plans of one agent, which the whole process shares and which is closed at its exit, answer the sessions. A session that
asks for more than plans give (options, other providers) is ONNX Runtime's own, as it was asked for. So is a run that a
plan refuses: its error is ONNX Runtime's. All that this module does not define is the package's.
"""

import logging
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import onnxruntime
from onnxruntime.capi.onnxruntime_inference_collection import check_and_normalize_provider_args
from typing_extensions import override

from agent_sdk.binding import IOBinding
from agent_sdk.errors import HopeError
from agent_sdk.model.ports import ModelMetadata as ModelMetadata
from agent_sdk.model.ports import NodeArg as NodeArg
from agent_sdk.session import Session
from agent_sdk.shared import AGENTS, close_behind

CPU: Final = "CPUExecutionProvider"
PLANNED: Final = frozenset({CPU, "AzureExecutionProvider"})
"""Providers in whose place plans answer; the second takes operators of its own only, which no plan has."""
CONFIGURED: Final = "ORT_LOAD_CONFIG_FROM_MODEL"
"""The variable by which ONNX Runtime takes options from the file."""
READS: Final = frozenset({"get_session_config_entry", "has_providers"})
"""Calls on session options that ask for nothing."""
SILENT: Final = frozenset({"logid", "log_verbosity_level", "profile_file_prefix", "inter_op_num_threads"})
"""Session options that change nothing unless another one does: the last is for parallel execution only."""
WARNING: Final = 2
"""The level from which on messages are fewer than ONNX Runtime's own default, and none of ours are."""

log = logging.getLogger(__name__)


class SessionOptions(onnxruntime.SessionOptions):  # type: ignore[misc]  # the package has no types
    """ONNX Runtime's options, which remember what was asked for by a call.

    Attributes:
        calls: the names of those calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []


_MEMBERS: Final = {name: kind for name, kind in vars(onnxruntime.SessionOptions).items() if not name.startswith("_")}
_DEFAULTS: Final = {
    name: getattr(onnxruntime.SessionOptions(), name) for name, kind in _MEMBERS.items() if isinstance(kind, property)
}


def _remembered(name: str) -> Callable[..., Any]:
    theirs = getattr(onnxruntime.SessionOptions, name)

    @wraps(theirs)
    def call(self: SessionOptions, *arguments: Any, **named: Any) -> Any:
        self.calls.append(name)
        return theirs(self, *arguments, **named)

    return call


for _name in _MEMBERS.keys() - _DEFAULTS.keys() - READS:
    setattr(SessionOptions, _name, _remembered(_name))


class InferenceSession(onnxruntime.InferenceSession):  # type: ignore[misc]  # the package has no types
    """A session as the package has it, answered by plans unless it asks for more than they give.

    What only ONNX Runtime can do is done by its own session of the file, opened when that is first needed.

    Attributes:
        planned: the agent's session, which explains and verifies; None where ONNX Runtime's own session answers.
    """

    planned: Session | None

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: onnxruntime.SessionOptions | None = None,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        self._given = path_or_bytes, sess_options, kwargs
        self._open(providers, provider_options)

    def _open(self, providers: Any, provider_options: Any) -> None:
        path_or_bytes, sess_options, kwargs = self._given
        self.planned = None
        beyond = [*_beyond(sess_options), *_other_providers(providers, provider_options), *_other_arguments(kwargs)]
        if beyond:
            log.info("ONNX Runtime itself answers, as asked for: %s", ", ".join(beyond))
        elif isinstance(path_or_bytes, str | bytes | os.PathLike):
            self.planned = _planned(path_or_bytes, on_cores=bool(providers))
        if self.planned is None:
            super().__init__(path_or_bytes, sess_options, providers, provider_options, **kwargs)
            return
        named, _ = check_and_normalize_provider_args(providers, None, onnxruntime.get_available_providers())
        self._named = [name for name in named if name in PLANNED]
        self._end = weakref.finalize(self, close_behind, self.planned)
        self._end.atexit = False  # the agent's own end comes then

    def __getattr__(self, name: str) -> Any:
        """What ONNX Runtime's sessions hold inside; asked for by what is inherited from them."""
        planned = self.__dict__.get("planned")
        if planned is None or name.startswith("__"):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return getattr(planned.plain, name)

    @override
    def get_session_options(self) -> onnxruntime.SessionOptions:
        return super().get_session_options() if self.planned is None else self._given[1] or SessionOptions()

    @override
    def get_providers(self) -> list[str]:
        return super().get_providers() if self.planned is None else [*self._named, *({CPU} - set(self._named))]

    @override
    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return super().get_provider_options() if self.planned is None else {name: {} for name in self.get_providers()}

    @override
    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        if self.planned is not None:
            self._end()
            if not _other_providers(providers, provider_options):
                self._open(providers, provider_options)
                return
            path_or_bytes, sess_options, kwargs = self._given
            self.planned = None
            super().__init__(path_or_bytes, sess_options, [CPU], **kwargs)
        super().set_providers(providers, provider_options)

    @override
    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], object],
        user_data: Any = None,
        run_options: onnxruntime.RunOptions | None = None,
    ) -> None:
        if self.planned is None:
            super().run_async(output_names, input_feed, callback, user_data, run_options)
        else:
            run = partial(self.run, output_names, input_feed, run_options)
            self.planned.begin(run, input_feed, callback, user_data)

    @override
    def run_with_iobinding(
        self, iobinding: onnxruntime.IOBinding, run_options: onnxruntime.RunOptions | None = None
    ) -> None:
        if self.planned is None or not isinstance(iobinding, IOBinding):
            super().run_with_iobinding(iobinding, run_options)
            return
        if iobinding.plans is not self.planned.plans:
            raise ValueError("IOBinding must be used with the session that created it.")
        try:
            self.planned.run_with_iobinding(iobinding, run_options)
        except HopeError as error:
            iobinding.run_on(_asked(self.planned, error), run_options)


def _answered(name: str) -> Callable[..., Any]:
    """A call that the agent's session answers as ONNX Runtime's would; one that it refuses ONNX Runtime answers."""
    theirs = getattr(onnxruntime.InferenceSession, name)

    @wraps(theirs)
    def call(self: InferenceSession, *arguments: Any, **named: Any) -> Any:
        if self.planned is None:
            return theirs(self, *arguments, **named)
        try:
            return getattr(self.planned, name)(*arguments, **named)
        except HopeError as error:
            return getattr(_asked(self.planned, error), name)(*arguments, **named)

    return call


ANSWERED: Final = ("get_inputs", "get_outputs", "get_overridable_initializers", "get_modelmeta", "io_binding", "run",
                   "run_with_ort_values")  # fmt: skip
"""Calls that an agent's session takes and answers as ONNX Runtime's does."""
for _name in ANSWERED:
    setattr(InferenceSession, _name, _answered(_name))


def _beyond(options: onnxruntime.SessionOptions | None) -> list[str]:
    """What session options ask for that plans do not give."""
    if options is None:
        return []
    if not isinstance(options, SessionOptions):
        return [f"{type(options).__name__} of another module, which does not tell"]
    values = {name: getattr(options, name) for name in _DEFAULTS.keys() - SILENT}
    if values["log_severity_level"] >= WARNING:
        del values["log_severity_level"]
    if values["intra_op_num_threads"] >= len(os.sched_getaffinity(0)):  # a plan takes no more threads than cores
        del values["intra_op_num_threads"]
    return [*dict.fromkeys(options.calls), *(name for name, value in values.items() if value != _DEFAULTS[name])]


def _other_providers(providers: Any, provider_options: Any) -> list[str]:
    """Providers in whose place no plan answers, and those with options; ones that are not installed are left out."""
    if provider_options is not None or not isinstance(providers, Sequence | None) or isinstance(providers, str):
        return ["provider options"]
    elsewhere = set(onnxruntime.get_all_providers()) - set(onnxruntime.get_available_providers())
    plain = PLANNED | elsewhere
    pairs = [each if isinstance(each, tuple) else (each, {}) for each in providers or ()]
    return [str(pair[0]) for pair in pairs if len(pair) != 2 or pair[0] not in plain or pair[1]]


def _other_arguments(kwargs: Mapping[str, Any]) -> list[str]:
    """Further arguments that no plan honours."""
    asked = [name for name in kwargs if name != "enable_fallback"]
    if os.environ.get(CONFIGURED) == "1":
        asked.append(CONFIGURED)
    return asked


def _planned(source: str | bytes | os.PathLike[str], *, on_cores: bool) -> Session | None:
    """The agent's session; None where ONNX Runtime has to say itself what it makes of the file."""
    try:
        return AGENTS.get(on_cores=on_cores).load(source if isinstance(source, bytes) else Path(source))
    except HopeError as error:
        log.info("ONNX Runtime itself answers: %s", error)
        return None


def _asked(session: Session, error: HopeError) -> onnxruntime.InferenceSession:
    """ONNX Runtime's own session, which answers, or says in its own words what is wrong."""
    log.info("%s: ONNX Runtime is asked: %s", session.name, error)
    return session.plain


def __getattr__(name: str) -> Any:
    """All else is the package's own."""
    if name == "__path__":
        raise AttributeError("agent_sdk.onnxruntime is a module; import from the package's own modules")
    with suppress(AttributeError):
        return getattr(onnxruntime, name)
    try:
        return import_module(f"onnxruntime.{name}")
    except ModuleNotFoundError:
        raise AttributeError(f"ONNX Runtime {onnxruntime.__version__} has no '{name}'") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(onnxruntime)})
