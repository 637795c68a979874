"""The contract's shape, checked while a body is read: nothing is collected, and the first thing wrong ends it.

Pydantic looks at a whole body and keeps every error: 16 MiB of ``{},{},...`` become gigabytes. So msgspec reads the
body first, by types made from the same classes: it knows every field with its bounds and stops at the first that is
wrong. Pydantic then finds at most what goes beyond one field.
"""

import types
from collections.abc import Iterable
from enum import Enum
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from pydantic import AwareDatetime, BaseModel, ValidationError
from pydantic.fields import FieldInfo

from planner_api.errors import MAX_CAUSES
from planner_api.web.errors import HttpError

BOUNDS = ("gt", "ge", "lt", "le", "min_length", "max_length", "pattern")
TOLD_BYTES = 2048
"""Up to this many bytes, pydantic collecting every error of a body costs next to nothing."""
Message = TypeVar("Message", bound=BaseModel)


def parse(text: bytes | bytearray, kind: type[Message]) -> Message:
    """Validate JSON bytes, in time and memory proportional to their number.

    Raises:
        HttpError: 400 when they are not JSON, 422 when they are not a ``kind``.
    """
    try:
        _decoder(kind).decode(text)
    except msgspec.ValidationError as error:
        if len(text) <= TOLD_BYTES:  # the contract says it better: it knows what an old agent must upgrade
            _validated(text, kind)
        what, _, where = str(error).rpartition(" - at ")
        cause = f"{where.strip('`').removeprefix('$.')}: {what}"[:500] if what else where[:500]
        raise HttpError(422, "invalid", f"the body is not a valid {kind.__name__}: {cause}", causes=[cause]) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise HttpError(400, "malformed-json", f"the body is not JSON: {str(error)[:500]}") from None
    return _validated(text, kind)


def _validated(text: bytes | bytearray, kind: type[Message]) -> Message:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise invalid(error) from None


@cache
def _decoder(kind: type[BaseModel]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(shape_of(kind))


@cache
def shape_of(kind: type[BaseModel]) -> Any:
    """Return the msgspec type of what ``kind`` looks like in JSON: closed, and with the bounds of every field."""
    fields: list[Any] = []
    for name, field in kind.model_fields.items():
        shape = _bounded(_shape(field.annotation), field.metadata)
        fields.append((name, shape) if field.is_required() else (name, shape | msgspec.UnsetType, msgspec.UNSET))
    return msgspec.defstruct(kind.__name__, fields, forbid_unknown_fields=True, kw_only=True)


def _shape(hint: Any) -> Any:
    """Return the msgspec type of an annotation.

    Raises:
        TypeError: one that the contract has not used so far; say here what it looks like in JSON.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is AwareDatetime:
        return str
    if origin is Annotated:
        return _bounded(_shape(arguments[0]), arguments[1:])
    if origin in (Union, types.UnionType):
        return _union([_shape(argument) for argument in arguments])
    if origin is tuple and arguments[1:] == (Ellipsis,):
        return types.GenericAlias(list, _shape(arguments[0]))
    if origin is dict:
        return types.GenericAlias(dict, (_shape(arguments[0]), _shape(arguments[1])))
    if origin is Literal or hint in (str, int, float, bool, type(None)):
        return hint
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return shape_of(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return Literal[tuple(member.value for member in hint)]
    raise TypeError(f"no shape is known for {hint}")


def _union(shapes: list[Any]) -> Any:
    """Put alternatives together; msgspec reads one kind of array in a union, so arrays become one of all items."""
    arrays = [shape for shape in shapes if get_origin(_bare(shape)) is list]
    if len(arrays) > 1:
        shapes = [shape for shape in shapes if shape not in arrays]
        items = reduce(or_, (get_args(_bare(array))[0] for array in arrays))
        longest = max(meta.max_length or 0 for array in arrays for meta in get_args(array)[1:])
        shapes.append(Annotated[types.GenericAlias(list, items), msgspec.Meta(max_length=longest)])
    return reduce(or_, shapes)


def _bare(shape: Any) -> Any:
    return get_args(shape)[0] if get_origin(shape) is Annotated else shape


def _bounded(shape: Any, metadata: Iterable[Any]) -> Any:
    found: dict[str, Any] = {}
    for item in metadata:
        for part in item.metadata if isinstance(item, FieldInfo) else (item,):
            found.update({name: bound for name in BOUNDS if (bound := getattr(part, name, None)) is not None})
    if "pattern" in found:
        # Pydantic's `$` is the end; Python's also matches before a last line break.
        found["pattern"] = found["pattern"].replace("$", r"\Z")
    return Annotated[shape, msgspec.Meta(**found)] if found else shape


def invalid(error: ValidationError) -> HttpError:
    """Turn pydantic's error into a problem: 400 for what is no JSON, 422 for JSON that says something impossible.

    The rejected input itself is left out: it may be long, and it may be what someone wants reflected.
    """
    found = error.errors(include_url=False, include_input=False, include_context=False)
    causes = []
    for item in found[:MAX_CAUSES]:
        where = ".".join(str(part)[:100] for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")[:500]
        causes.append(f"{where}: {message}" if where else message)
    if found[0]["type"] == "json_invalid":
        return HttpError(400, "malformed-json", f"the body is not JSON: {causes[0]}")
    return HttpError(422, "invalid", f"the body is not a valid {error.title}: {causes[0]}", causes=causes)
