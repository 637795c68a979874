"""A ``torch.nn.Module`` as an ONNX file's bytes: exported by torch itself, on inputs that the application gives."""

import importlib
import importlib.util
import inspect
import io
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeGuard

from agent_sdk.errors import InputError, ModelError, said
from agent_sdk.model.content import Source

EXPORTER: Final = "onnxscript"
"""The package that torch's newer exporter needs; without it torch has its older one."""


def is_module(source: object) -> TypeGuard[Any]:
    """Whether this is a module of torch's; where nobody has imported torch by now, nothing is."""
    return isinstance(source, getattr(sys.modules.get("torch.nn"), "Module", ()))


def named_source(source: Source | Any, inputs: tuple[Any, ...]) -> tuple[str, Source]:
    """What to call a source, and itself; a module as it is exported on ``inputs``. Raises like ``exported``."""
    if is_module(source):
        return type(source).__name__, exported(source, inputs)
    if inputs:
        raise InputError("inputs are given only to a torch.nn.Module, to be exported on: a network has its own")
    return str(source) if isinstance(source, str | os.PathLike) else "the model", source


def exported(module: Any, inputs: tuple[Any, ...]) -> bytes:
    """A module as torch exports it for inference; its inputs are called as the parameters of its ``forward``, as far as
    it tells them: a scripted or traced one does not.

    Raises InputError where ``inputs`` are none, or ModelError where torch cannot export it.
    """
    torch: Any = importlib.import_module("torch")
    if not isinstance(inputs, tuple) or not inputs:
        raise InputError("a torch.nn.Module is exported by running it: give inputs=(x, ...), one for each argument")
    scripted = isinstance(module, torch.jit.ScriptModule)  # the newer exporter takes none, nor has it a signature
    newer = importlib.util.find_spec(EXPORTER) is not None and not scripted
    names = [] if scripted else list(inspect.signature(module.forward).parameters)[: len(inputs)]
    called = names if len(names) == len(inputs) else None
    file = io.BytesIO()
    try:
        with _inferring(module), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            if newer:
                program = torch.onnx.export(module, inputs, input_names=called, dynamo=True, verbose=False)
                return bytes(program.model_proto.SerializeToString())
            torch.onnx.export(module, inputs, file, input_names=called, dynamo=False)
    except Exception as error:  # torch and the module raise whatever they like
        hint = "" if newer or scripted else f"; with the package '{EXPORTER}' installed, torch's newer exporter is used"
        raise ModelError(f"torch cannot export {type(module).__name__}: {said(error)}{hint}") from error
    return file.getvalue()


@contextmanager
def _inferring(module: Any) -> Iterator[None]:
    """Every part of it in inference mode; afterwards each is as it was."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training
