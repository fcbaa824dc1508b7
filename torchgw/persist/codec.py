"""Objects as containers of tensors and numbers, and back, for the classes that are marked as `storable`.

What this makes is read again by ``torch.load(weights_only=True)``: a file can name such a class and give its members,
and nothing else; no code of a file runs, and nothing in it is larger than the file. ``torch.serialization``'s own list
of safe classes does not replace it: see ``docs/architecture.md``.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar
from zipfile import ZIP_STORED, ZipFile

import numpy as np
import torch
from torch import Tensor

from torchgw import validate
from torchgw.persist import guards

KIND = "kind:"
PLAIN = (bool, int, float, str)
MAKERS = re.compile(
    r"collections OrderedDict|torch\._utils _rebuild_tensor_v[23]|torch\.storage UntypedStorage|"
    r"torch (\w+Storage|u?int\d+|b?float\d\w*)"
)


STORABLE: dict[str, type[Any]] = {}
"""The classes whose objects may be written, by the names that files know them by."""

Kind = TypeVar("Kind", bound=type[Any])


def storable(kind: Kind) -> Kind:
    """Let files hold objects of this class: a dataclass, a named tuple, an enum, or one with ``__getstate__``. Nothing
    of it runs when they are read but its ``__setstate__``."""
    STORABLE[_name(kind)] = kind
    return kind


def encode(value: Any) -> Any:
    """The object as dictionaries, lists, tensors, strings and numbers.

    Raises
    ------
    TypeError
        For an object of a class that is not known.
    """
    if isinstance(value, Tensor):
        tensor = value.detach().cpu()
        tensor = tensor.contiguous() if _repeats(tensor) else tensor
        return tensor if value.device.type == "cpu" else {KIND: "tensor", "on": str(value.device), "values": tensor}
    if value is None or type(value) in PLAIN:
        return value
    if isinstance(value, list):
        return [encode(entry) for entry in value]
    if isinstance(value, Mapping):
        return {KIND: "dict", "items": [[encode(key), encode(entry)] for key, entry in value.items()]}
    if isinstance(value, torch.dtype | torch.device):
        return {KIND: type(value).__name__, "name": str(value).removeprefix("torch.")}
    if isinstance(value, np.generic):
        return encode(value.item())
    if isinstance(value, np.ndarray):
        return _array(value)
    if hasattr(value, "tocsr") and hasattr(value, "nnz"):
        return _graph(value.tocsr())
    return _object(value)


def decode(plain: Any) -> Any:
    """The object that `encode` was given."""
    if isinstance(plain, list):
        return [decode(entry) for entry in plain]
    if not isinstance(plain, dict):
        return plain
    kind = plain[KIND]
    if kind == "dict":
        return {decode(key): decode(entry) for key, entry in plain["items"]}
    if kind == "tuple":
        return tuple(decode(plain["items"]))
    if kind == "tensor":
        return plain["values"].to(_device(plain["on"]))
    if kind == "device":
        return _device(plain["name"])
    if kind == "dtype":
        return _dtype(plain["name"])
    if kind == "array":
        return plain["values"].numpy()
    if kind == "graph":
        n, k = plain["shape"]
        parts = {name: plain[name].numpy() for name in ("data", "indices", "indptr")}
        return guards.sparse_matrix("csr", parts, (int(n), int(k)))
    if kind not in STORABLE:
        raise ValueError(f"a file must name known classes only, got {kind!r}")
    return _make_object(STORABLE[kind], plain)


def _array(values: Any) -> dict[str, Any]:
    if values.dtype.kind not in "fiub":
        raise TypeError(f"arrays of numbers can be kept, got dtype {values.dtype}")
    # Tensors have no strides that run backwards, and no byte order but the machine's.
    return {KIND: "array", "values": torch.from_numpy(np.array(values, dtype=values.dtype.newbyteorder("=")))}


def _graph(graph: Any) -> dict[str, Any]:
    parts = {name: torch.from_numpy(np.array(getattr(graph, name))) for name in ("data", "indices", "indptr")}
    return {KIND: "graph", "shape": list(graph.shape)} | parts


def _object(value: Any) -> dict[str, Any]:
    kind = type(value)
    if kind is tuple:
        return {KIND: "tuple", "items": encode(list(value))}
    if STORABLE.get(_name(kind)) is not kind and hasattr(value, "__array__"):  # a table, say
        return _array(np.asarray(value))
    if STORABLE.get(_name(kind)) is not kind:
        raise TypeError(f"an object of class {kind.__name__} cannot be kept in a file")
    if isinstance(value, Enum):
        return {KIND: _name(kind), "name": value.name}
    if isinstance(value, tuple):
        return {KIND: _name(kind), "items": encode(list(value))}
    state = value.__getstate__() if "__getstate__" in vars(kind) else vars(value)
    return {KIND: _name(kind), "members": {name: encode(member) for name, member in state.items()}}


def _make_object(kind: type[Any], plain: dict[str, Any]) -> Any:
    if issubclass(kind, Enum):
        return kind[plain["name"]]
    if issubclass(kind, tuple):
        return kind(*decode(plain["items"]))
    made = object.__new__(kind)
    members = {name: decode(member) for name, member in plain["members"].items()}
    if "__setstate__" in vars(kind):
        made.__setstate__(members)
    else:  # frozen dataclasses too: their members were checked when they were first made
        vars(made).update(members)
    return made


def load(file: Path) -> Any:
    """What `encode` made, from an archive of ``torch.save``.

    Raises
    ------
    ValueError, BadZipFile, EOFError, UnpicklingError
        When the file is something else.
    """
    with file.open("rb") as opened, ZipFile(opened) as archive:
        opened.seek(0)
        if opened.read(4) != b"PK\x03\x04":  # older formats of torch.load are for trusted files
            raise ValueError("it is no archive of tensors")
        for member in archive.infolist():
            if member.compress_type != ZIP_STORED:
                raise ValueError("its members are compressed, as torch never does")
            if member.filename.lower().endswith("data.pkl"):
                _check_makers(archive.read(member))
    plain = torch.load(file, weights_only=True)
    _check_size(plain)
    return plain


def _check_makers(pickled: bytes) -> None:
    """Refuse what torch would make besides tensors: ``bytearray(2**40)``, say."""
    for code, argument, _ in pickletools.genops(pickled):
        if code.name == "GLOBAL" and not MAKERS.fullmatch(str(argument)):
            raise ValueError(f"it must hold tensors, numbers and text only, got {argument!r}")


def _check_size(plain: Any) -> None:
    """Refuse few bytes that stand for many: tensors whose entries share places, and containers that do."""
    seen, left = set(), [plain]
    while left:
        entry = left.pop()
        if isinstance(entry, list | dict):
            if id(entry) in seen:
                raise ValueError("a list or dictionary stands in two places")
            seen.add(id(entry))
            left.extend(entry.values() if isinstance(entry, dict) else entry)
        elif isinstance(entry, Tensor):
            if _repeats(entry):
                raise ValueError(f"a tensor of shape {tuple(entry.shape)} is stored in fewer numbers than it has")
        elif entry is not None and type(entry) not in PLAIN:
            raise ValueError(f"tensors, numbers and text can be kept, got {type(entry).__name__}")


def _repeats(tensor: Tensor) -> bool:
    """Whether some entries share a place in storage, as those of expanded tensors do."""
    return tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes()


def _device(name: str) -> torch.device:
    """A device that is there; none stands in for another, whose random draws could not go on."""
    try:
        return validate.device("device", name)
    except ValueError as error:
        raise ValueError(f"its device {name} is not there; resume it on a machine that has it") from error


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"a file must name dtypes of torch, got {name!r}")
    return found


def _name(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
