"""Reads and writes rows as JSON Lines (``.jsonl``) or Parquet (``.parquet``, with pyarrow).

In JSON Lines a row is an object with only its own columns. In Parquet a column has one type, so
values of any shape (tools, arguments of tool calls, content in parts) are JSON text.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from pydantic_core import PydanticSerializationError, from_json, to_json

from agl_core.errors import ConfigError, InvalidArgumentError, MissingDependencyError

__all__ = ["FORMATS", "RowWriter", "check_format", "read_rows", "writing_rows"]

FORMATS: Final = (".jsonl", ".parquet")
_BATCH: Final = 1000
"""Rows that are held at a time: a row group of Parquet, and a few megabytes of JSON."""

_INTEGER_LISTS: Final = frozenset(
    {"input_ids", "labels", "mask", "prompt_ids", "response_ids", "chosen_ids", "rejected_ids"}
)
_FLOAT_LISTS: Final = frozenset({"logprobs", "call_rewards"})
_STRING_LISTS: Final = frozenset({"altered_sampling", "models", "model_versions"})
_FLOATS: Final = frozenset({"reward", "call_reward", "reward_chosen", "reward_rejected"})
_FLAGS: Final = frozenset({"ids_present", "logprobs_present"})
_MESSAGES: Final = frozenset({"messages", "prompt", "chosen", "rejected"})


class RowWriter(Protocol):
    """Writes one row to a file."""

    def __call__(self, row: Mapping[str, Any]) -> None: ...


def check_format(path: Path) -> None:
    """Check that a file can be written, before rollouts are read for it.

    Raises:
        ConfigError: The suffix is unknown, or the folder does not exist.
        MissingDependencyError: It is a Parquet file and pyarrow is not installed.
    """
    if path.suffix not in FORMATS:
        raise ConfigError(f"{path}: the name must end in .jsonl or .parquet")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: the folder {path.parent} does not exist")
    if path.suffix == ".parquet":
        _load_parquet()


@contextmanager
def writing_rows(path: Path) -> Generator[RowWriter]:
    """Open a file for rows. The file appears when the context ends without an exception.

    A file without rows is not written; an existing file of this name is then kept.

    Raises:
        ConfigError: The suffix is unknown, or the folder does not exist.
        MissingDependencyError: It is a Parquet file and pyarrow is not installed.
    """
    check_format(path)
    unfinished = path.with_name(path.name + ".part")
    try:
        with _open(unfinished, path.suffix) as write:
            yield write
        if unfinished.exists():
            unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def _open(path: Path, suffix: str) -> Generator[RowWriter]:
    rows: list[Mapping[str, Any]] = []
    sink = _JsonLines(path) if suffix == ".jsonl" else _Parquet(path)

    def write(row: Mapping[str, Any]) -> None:
        rows.append(row)
        if len(rows) == _BATCH:
            sink.add(rows)
            rows.clear()

    try:
        yield write
        if rows:
            sink.add(rows)
    finally:
        sink.close()


def _create(path: Path) -> BinaryIO:
    """Open a new file; what an interrupted export left, or a link of this name, is removed first.

    In a folder that others can write to, a link could name any file of the user.
    """
    path.unlink(missing_ok=True)
    return path.open("xb")


class _JsonLines:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: Any = None

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        if self._file is None:
            self._file = _create(self._path)
        self._file.write(b"".join(_line(row) for row in rows))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _line(row: Mapping[str, Any]) -> bytes:
    try:
        return to_json(row) + b"\n"
    except PydanticSerializationError:
        return to_json(_encodable(row)) + b"\n"


def _encodable(value: Any) -> Any:
    """Return JSON with a question mark for half of a surrogate pair, which has no UTF-8."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


class _Parquet:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._pyarrow, self._parquet = _load_parquet()
        self._file: Any = None
        self._writer: Any = None

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        if self._writer is None:
            columns = dict.fromkeys(["tools", *rows[0]] if _MESSAGES & rows[0].keys() else rows[0])
            self._file = _create(self._path)
            schema = self._pyarrow.schema([(name, self._type(name)) for name in columns])
            self._writer = self._parquet.ParquetWriter(self._file, schema, compression="zstd")
        schema = self._writer.schema
        plain = [{name: _cell(name, row.get(name)) for name in schema.names} for row in rows]
        try:
            table = self._pyarrow.Table.from_pylist(plain, schema=schema)
        except UnicodeEncodeError:
            table = self._pyarrow.Table.from_pylist(_encodable(plain), schema=schema)
        self._writer.write_table(table)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._file is not None:
            self._file.close()

    def _type(self, name: str) -> Any:
        pa = self._pyarrow
        if name in _INTEGER_LISTS:
            return pa.list_(pa.int64())
        if name in _FLOAT_LISTS:
            return pa.list_(pa.float64())
        if name in _STRING_LISTS:
            return pa.list_(pa.string())
        if name in _FLOATS:
            return pa.float64()
        if name in _FLAGS:
            return pa.bool_()
        if name in ("prompt_length", "turn"):
            return pa.int64()
        if name == "responses":
            return pa.list_(pa.list_(pa.int64()))
        if name in _MESSAGES:
            return pa.list_(self._message())
        return pa.string()

    def _message(self) -> Any:
        pa = self._pyarrow
        function = pa.struct([("name", pa.string()), ("arguments", pa.string())])
        call = pa.struct([("id", pa.string()), ("type", pa.string()), ("function", function)])
        texts = [(name, pa.string()) for name in ("role", "content", "name", "tool_call_id")]
        return pa.struct([*texts, ("tool_calls", pa.list_(call))])


def _cell(name: str, value: Any) -> Any:
    if name in _MESSAGES:
        return [_message_cell(message) for message in value]
    if name == "tools":
        return None if value is None else json.dumps(value, ensure_ascii=False)
    return value


def _message_cell(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    return {
        **message,
        "content": _as_text(message.get("content")),
        "tool_calls": calls
        and [
            {
                **call,
                "function": {
                    **call["function"],
                    "arguments": _as_text(call["function"]["arguments"]),
                },
            }
            for call in calls
        ],
    }


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _load_parquet() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingDependencyError("Parquet files", pip="pyarrow") from error


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file, with tools as objects and without null keys of messages.

    Raises:
        InvalidArgumentError: A line is not a JSON object; the message names it.
        ConfigError: The suffix is unknown.
        MissingDependencyError: It is a Parquet file and pyarrow is not installed.
    """
    check_format(path)
    if path.suffix == ".parquet":
        _, parquet = _load_parquet()
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=_BATCH):
            for row in batch.to_pylist():
                yield _from_parquet(row)
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                row = from_json(line)
            except ValueError as error:
                raise InvalidArgumentError(f"{path}, line {number} is not JSON") from error
            if not isinstance(row, dict):
                raise InvalidArgumentError(f"{path}, line {number} is not a JSON object")
            yield row


def _from_parquet(row: dict[str, Any]) -> dict[str, Any]:
    for name in _MESSAGES & row.keys():
        row[name] = [
            {key: value for key, value in message.items() if value is not None}
            for message in row[name]
        ]
    tools = row.pop("tools", None)
    if tools is not None:
        row["tools"] = json.loads(tools)
    return row
