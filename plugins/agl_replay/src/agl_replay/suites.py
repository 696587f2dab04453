"""Suites: files of recorded rollouts, kept beside the code of an agent as its regression tests.

A suite is a file of JSON lines. The first line is a header, each further line is a recording with
its spans and resources. It holds what a replay needs and no more: keys are redacted
(:func:`agl_core.genai.without_secrets`), and names of machines are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from agl_core.errors import AttemptNotFoundError, ConfigError, SpansEvictedError
from agl_core.genai import Json, dumps, loads, without_secrets
from agl_core.store import LightningStore
from agl_core.types import Attempt, NamedResources, Resource, Rollout, RolloutConfig, Span
from agl_replay.recording import NotReplayableError, Recording, read_calls, read_recording

__all__ = ["Suite", "read_recordings", "read_suite", "write_suite"]

_FORMAT: Final = "agl_suite"
_VERSION: Final = 1
"""Of the format; a reader refuses any other."""
_USER_INFO: Final = re.compile(r"(?<=://)[^/@\s]*@")
_RESOURCES: Final[TypeAdapter[NamedResources]] = TypeAdapter(NamedResources)
_NAMED: Final = 60
"""Most characters of a task's name."""


@dataclass(frozen=True)
class Suite:
    """Recorded rollouts that an agent is expected to repeat.

    Attributes:
        recordings: The recordings, in the order of their tasks.
        of_file: Names of the resources that the train file gave, when it was recorded. A replay
            takes them from the train file again, so that a change of the file is found.
    """

    recordings: Sequence[Recording]
    of_file: frozenset[str] = frozenset()

    def with_resources(self, resources: Mapping[str, Resource]) -> Suite:
        """Return the suite with a train file's resources: those of ``of_file``, and new ones."""

        def changed(recording: Recording) -> Recording:
            before = recording.resources
            now = {
                name: one
                for name, one in resources.items()
                if name in self.of_file or name not in before
            }
            return Recording(
                recording.rollout,
                recording.attempt,
                recording.spans,
                recording.calls,
                {**before, **now},
            )

        return Suite([changed(one) for one in self.recordings], self.of_file)


def task_name(recording: Recording) -> str:
    """Return a recording's task as a short text on one line."""
    task = recording.rollout.input
    text = " ".join((task if isinstance(task, str) else dumps(task).decode()).split())
    return text if len(text) <= _NAMED else f"{text[: _NAMED - 1]}…"


def named_recordings(path: Path) -> list[tuple[str, Recording]]:
    """Return the recordings of a suite by name of the task; raises as :func:`read_suite`."""
    return [(task_name(one), one) for one in read_suite(path).recordings]


async def read_recordings(
    store: LightningStore, rollout_ids: Iterable[str]
) -> tuple[list[Recording], list[str]]:
    """Read the recordings of rollouts.

    Returns:
        The recordings, and a line for each rollout without one: it was never run, made no model
        call that can be replayed, or its spans were dropped.

    Raises:
        RolloutNotFoundError: The store has no such rollout.
    """
    recordings: list[Recording] = []
    left_out: list[str] = []
    for rollout_id in rollout_ids:
        try:
            recordings.append(await read_recording(store, rollout_id))
        except (AttemptNotFoundError, NotReplayableError, SpansEvictedError) as error:
            left_out.append(str(error))
    return recordings, left_out


def add_to_suite(path: Path, recording: Recording) -> int:
    """Add a recording to a suite, which is made if it does not exist; return its new length.

    A recording of the same rollout is replaced. Errors as :func:`read_suite`, :func:`write_suite`.
    """
    suite = read_suite(path) if path.exists() else Suite([])
    added = recording.rollout.rollout_id
    others = [one for one in suite.recordings if one.rollout.rollout_id != added]
    write_suite(path, Suite([*others, recording], suite.of_file))
    return len(others) + 1


def write_suite(path: Path, suite: Suite) -> None:
    """Write a suite; an existing file is replaced when the new one is whole.

    Raises:
        ConfigError: There is no recording to write, or the file cannot be written.
    """
    if not suite.recordings:
        raise ConfigError(f"{path}: there is no recording to write")
    header = {_FORMAT: _VERSION, "of_file": sorted(suite.of_file)}
    unfinished = path.with_name(path.name + ".part")
    try:
        unfinished.unlink(missing_ok=True)  # it may be a link to another file
        with unfinished.open("xb") as file:
            for line in (header, *map(_as_json, suite.recordings)):
                file.write(dumps(line) + b"\n")
        unfinished.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # what kept it from being written may keep it from being removed
            unfinished.unlink(missing_ok=True)


def read_suite(path: Path) -> Suite:
    """Read a suite.

    Raises:
        ConfigError: There is no such file, or it is not a suite.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        how = "record it with `agl eval FILE --record SUITE`"
        raise ConfigError(f"the suite {path} cannot be read: {error.strerror}; {how}") from error
    try:
        header, *rest = map(loads, lines)
        version = header[_FORMAT]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a suite of recorded rollouts") from error
    if version != _VERSION:
        raise ConfigError(f"{path} is a suite of version {version}; update agl-replay")
    try:
        recordings = [_from_json(line) for line in rest]
    except (KeyError, TypeError, ValidationError, NotReplayableError) as error:
        raise ConfigError(f"{path}: a recording is damaged: {error}") from error
    return Suite(recordings, frozenset(header["of_file"]))


def _as_json(recording: Recording) -> Json:
    rollout, attempt = recording.rollout, recording.attempt
    resources = _RESOURCES.dump_python(recording.resources, mode="json")
    return {
        "rollout_id": rollout.rollout_id,
        "attempt_id": attempt.attempt_id,
        "input": TypeAdapter(Any).dump_python(rollout.input, mode="json"),
        "mode": rollout.mode,
        "status": rollout.status,
        "resources": {name: _resource_as_json(one) for name, one in resources.items()},
        "spans": [_span_as_json(span) for span in recording.spans],
    }


def _resource_as_json(resource: Json) -> Json:
    kept = without_secrets(resource)
    if isinstance(endpoint := kept.get("endpoint"), str):
        kept["endpoint"] = _USER_INFO.sub("", endpoint)
    return kept


_SPAN_FIELDS: Final = {
    "sequence_id",
    "trace_id",
    "span_id",
    "parent_id",
    "name",
    "status",
    "attributes",
    "events",
    "start_time",
    "end_time",
}


def _span_as_json(span: Span) -> Json:
    return without_secrets(span.model_dump(mode="json", include=_SPAN_FIELDS))


def _from_json(line: Json) -> Recording:
    rollout_id, attempt_id = line["rollout_id"], line["attempt_id"]
    ids = {"rollout_id": rollout_id, "attempt_id": attempt_id}
    absent: Json = {"links": [], "context": None, "parent": None}
    absent["resource"] = {"attributes": {}, "schema_url": ""}
    spans = [Span.model_validate({**ids, **absent, **span}) for span in line["spans"]]
    start = min((span.start_time for span in spans if span.start_time is not None), default=0.0)
    rollout = Rollout(
        rollout_id=rollout_id,
        input=line["input"],
        start_time=start,
        mode=line["mode"],
        status=line["status"],
        config=RolloutConfig(),
    )
    attempt = Attempt(**ids, sequence_id=1, start_time=start)
    resources = _RESOURCES.validate_python(line["resources"])
    return Recording(rollout, attempt, spans, read_calls(spans, rollout_id), resources)
