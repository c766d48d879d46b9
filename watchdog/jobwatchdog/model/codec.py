"""JSON for every value of the model: tagged, checked on the way in, the same bytes for the same value.

A value is written by the declared type of each field, so `5` in a float field is always `5.0` and a
round trip never changes a byte. Absent things (None, empty tuples and mappings that are a field's
default) are left out; a ledger of an earlier release, which lacks a newer field, reads with its default.
Where the declared class has subclasses, and at the top, an `is` names the class.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Final, TypeVar

from jobwatchdog import model
from jobwatchdog.model.action import Json

T = TypeVar("T")

TAG: Final = "is"
_FLOAT: Final = "$float"  # nan and inf inside free-form values, which JSON cannot say
_ODD_FLOATS: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

_Encode = Callable[[object], Json]
_Decode = Callable[[Json, str], object]


class CodecError(ValueError):
    """A value does not fit its declared type; the message has the path into the document."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Coder:
    encode: _Encode
    decode: _Decode


@dataclasses.dataclass(frozen=True, slots=True)
class _Slot:
    """One field of a class: how it is written, and whether it may be absent."""

    name: str
    coder: _Coder
    required: bool
    left_out: object  # a value that is not written, `_NEVER` if all are


_NEVER: Final = object()


def encode(value: object) -> Json:
    """The JSON value of a model dataclass, tagged with its class."""
    cls = type(value)
    if _classes().get(cls.__name__) is not cls:
        raise CodecError(f"{cls.__name__} is no class of the model")
    return {TAG: cls.__name__, **_encode_fields(value)}


def decode(cls: type[T], data: Json) -> T:
    """The model value in `data`, which must be a `cls` or one of its subclasses."""
    value = _decode_class(cls, data, cls.__name__)
    if not isinstance(value, cls):
        raise CodecError(f"{cls.__name__} expected, {type(value).__name__} read")
    return value


def dumps(value: object) -> str:
    """One line of JSON; equal values give equal bytes."""
    return json_text(encode(value))


def loads(cls: type[T], text: str) -> T:
    """The reverse of `dumps`."""
    try:
        data: Json = json.loads(text)
    except ValueError as error:
        raise CodecError(f"not JSON: {error}") from error
    return decode(cls, data)


def json_text(data: Json) -> str:
    """Canonical text of plain JSON: sorted keys, no spaces, ASCII."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


# ---- classes ----------------------------------------------------------------------------------------


@cache
def _classes() -> dict[str, type]:
    found = {name: getattr(model, name) for name in model.__all__}
    return {name: cls for name, cls in found.items() if isinstance(cls, type) and dataclasses.is_dataclass(cls)}


@cache
def _tagged(cls: type) -> bool:
    """Whether a field declared as `cls` may hold a subclass."""
    return any(other is not cls and issubclass(other, cls) for other in _classes().values())


@cache
def _slots(cls: type) -> tuple[_Slot, ...]:
    hints = typing.get_type_hints(cls)
    return tuple(_slot(field, hints[field.name]) for field in dataclasses.fields(cls))


def _slot(field: dataclasses.Field[object], hint: object) -> _Slot:
    required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    absent = default if default is None or default == () or default == {} else _NEVER
    return _Slot(field.name, _coder(hint), required, absent)


def _encode_fields(value: object) -> dict[str, Json]:
    out: dict[str, Json] = {}
    cls: type = type(value)
    for slot in _slots(cls):
        item = getattr(value, slot.name)
        if slot.left_out is not _NEVER and (item is slot.left_out or item == slot.left_out):
            continue
        try:
            out[slot.name] = slot.coder.encode(item)
        except CodecError as error:
            raise CodecError(f"{cls.__name__}.{slot.name}: {error}") from None
    return out


def _decode_class(cls: type, data: Json, where: str) -> object:
    if not isinstance(data, dict):
        raise CodecError(f"{where}: an object expected, {_shown(data)} read")
    actual = _actual_class(cls, data.get(TAG), where)
    slots = {slot.name: slot for slot in _slots(actual)}
    unknown = sorted(set(data) - set(slots) - {TAG})
    if unknown:
        raise CodecError(f"{where}: {actual.__name__} has no field {', '.join(unknown)}; written by a newer release?")
    missing = sorted(slot.name for slot in slots.values() if slot.required and slot.name not in data)
    if missing:
        raise CodecError(f"{where}: {actual.__name__} lacks {', '.join(missing)}")
    values = {n: s.coder.decode(data[n], f"{where}.{n}") for n, s in slots.items() if n in data}
    return actual(**values)


def _actual_class(cls: type, tag: Json, where: str) -> type:
    if tag is None:
        if _tagged(cls):
            raise CodecError(f"{where}: no {TAG!r} says which {cls.__name__} this is")
        return cls
    actual = _classes().get(tag) if isinstance(tag, str) else None
    if actual is None:
        raise CodecError(f"{where}: {_shown(tag)} is no class of the model; written by a newer release?")
    if not issubclass(actual, cls):
        raise CodecError(f"{where}: {cls.__name__} expected, {actual.__name__} read")
    return actual


def _class_coder(cls: type) -> _Coder:
    def enc(value: object) -> Json:
        if not isinstance(value, cls):
            raise CodecError(f"{cls.__name__} expected, {_shown(value)} given")
        return encode(value) if _tagged(cls) else _encode_fields(value)

    return _Coder(enc, lambda data, where: _decode_class(cls, data, where))


# ---- types ------------------------------------------------------------------------------------------


@cache
def _coder(hint: object) -> _Coder:
    while isinstance(hint, typing.NewType):
        hint = hint.__supertype__
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        return _plain_coder(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _optional_coder(args)
    if origin is tuple:
        return _tuple_coder(args)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_coder(_coder(args[1]))
    raise TypeError(f"the model uses a type that JSON has no word for: {hint}")


def _plain_coder(hint: type) -> _Coder:
    if dataclasses.is_dataclass(hint):
        return _class_coder(hint)
    if issubclass(hint, Enum):
        return _enum_coder(hint)
    if hint is float:
        return _Coder(_encode_float, _decode_float)
    if hint in (int, str, bool):
        return _scalar_coder(hint)
    raise TypeError(f"the model uses a type that JSON has no word for: {hint}")


def _scalar_coder(hint: type) -> _Coder:
    def check(value: object, where: str) -> object:
        if type(value) is not hint and not (hint is str and isinstance(value, str)):
            raise CodecError(f"{where}: {hint.__name__} expected, {_shown(value)} read")
        return str(value) if hint is str else value

    return _Coder(lambda value: typing.cast("Json", check(value, "value")), check)


def _enum_coder(hint: type[Enum]) -> _Coder:
    def dec(data: Json, where: str) -> object:
        try:
            return hint(data)
        except ValueError:
            words = ", ".join(str(m.value) for m in hint)
            raise CodecError(f"{where}: {_shown(data)} is no {hint.__name__}; there are {words}") from None

    def enc(value: object) -> Json:
        if not isinstance(value, hint):
            raise CodecError(f"{hint.__name__} expected, {_shown(value)} given")
        return str(value.value)

    return _Coder(enc, dec)


def _encode_float(value: object) -> Json:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CodecError(f"a number expected, {_shown(value)} given")
    number = float(value)
    return number if math.isfinite(number) else str(number)


def _decode_float(data: Json, where: str) -> object:
    if isinstance(data, str) and data in _ODD_FLOATS:
        return _ODD_FLOATS[data]
    if isinstance(data, bool) or not isinstance(data, int | float):
        raise CodecError(f"{where}: a number expected, {_shown(data)} read")
    return float(data)


def _optional_coder(args: tuple[object, ...]) -> _Coder:
    if list in args or any(typing.get_origin(arg) is list for arg in args):
        return _Coder(_encode_free, _decode_free)  # the recursive Json
    inner = [arg for arg in args if arg is not type(None)]
    if len(inner) != 1:
        raise TypeError(f"the model uses a union that JSON cannot tell apart: {args}")
    coder = _coder(inner[0])
    return _Coder(
        lambda value: None if value is None else coder.encode(value),
        lambda data, where: None if data is None else coder.decode(data, where),
    )


def _tuple_coder(args: tuple[object, ...]) -> _Coder:
    if len(args) != 2 or args[1] is not ...:
        raise TypeError(f"only tuples of one type are in the model, not {args}")
    item = _coder(args[0])

    def enc(value: object) -> Json:
        if not isinstance(value, tuple | list):
            raise CodecError(f"a tuple expected, {_shown(value)} given")
        return [item.encode(one) for one in value]

    def dec(data: Json, where: str) -> object:
        if not isinstance(data, list):
            raise CodecError(f"{where}: a list expected, {_shown(data)} read")
        return tuple(item.decode(one, f"{where}[{i}]") for i, one in enumerate(data))

    return _Coder(enc, dec)


def _mapping_coder(item: _Coder) -> _Coder:
    def enc(value: object) -> Json:
        if not isinstance(value, Mapping):
            raise CodecError(f"a mapping expected, {_shown(value)} given")
        return {str(key): item.encode(value[key]) for key in sorted(value)}

    def dec(data: Json, where: str) -> object:
        if not isinstance(data, dict):
            raise CodecError(f"{where}: an object expected, {_shown(data)} read")
        return {key: item.decode(one, f"{where}.{key}") for key, one in data.items()}

    return _Coder(enc, dec)


# ---- free-form values (`args`, `data`) --------------------------------------------------------------


def _encode_free(value: object) -> Json:
    if value is None or isinstance(value, bool | int | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_FLOAT: str(value)}
    if isinstance(value, list | tuple):
        return [_encode_free(one) for one in value]
    if isinstance(value, Mapping):
        if _FLOAT in value:
            raise CodecError(f"the key {_FLOAT} is reserved")
        return {str(key): _encode_free(value[key]) for key in sorted(value)}
    raise CodecError(f"JSON has no word for {_shown(value)}")


def _decode_free(data: Json, where: str) -> Json:
    if isinstance(data, list):
        return [_decode_free(one, f"{where}[{i}]") for i, one in enumerate(data)]
    if not isinstance(data, dict):
        return data
    if set(data) == {_FLOAT}:
        return typing.cast("float", _decode_float(data[_FLOAT], where))
    return {key: _decode_free(one, f"{where}.{key}") for key, one in data.items()}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
