"""Defining metrics, and passing values to the active backends."""

from __future__ import annotations

import logging
import os

import pytest

from agl_core.errors import ComponentTypeError, ConfigError, PluginNotFoundError
from agl_core.metrics import (
    Metric,
    Metrics,
    Recorder,
    build_tracker,
    is_recording,
    record,
    recording,
)
from agl_core.plugins._events import has_listeners
from tests.core.metrics.held import Held

CALLS = Metric("counter", "test.calls", "Calls.", ("status",))


@pytest.mark.parametrize("name", ["", "Calls", "a..b", "a-b", ".a", "a.", "1a"])
def test_a_malformed_name_is_refused(name: str):
    with pytest.raises(ValueError, match="not a name"):
        Metric("counter", name, "")
    with pytest.raises(ValueError, match="not a name"):
        Metric("counter", "fine", "", (name,))


def test_a_label_has_no_dots():
    with pytest.raises(ValueError, match="not a name"):
        Metric("counter", "fine", "", ("a.b",))


def test_bounds_that_do_not_increase_are_refused():
    for bounds in ((1, 1), (2, 1)):
        with pytest.raises(ValueError, match="increase"):
            Metric("histogram", "fine", "", buckets=bounds)


def test_values_go_to_every_active_backend_and_nowhere_afterwards():
    one, two = Held(), Held()
    record(CALLS, 1, "early")
    assert not is_recording()
    with recording(one, two):
        assert is_recording()
        record(CALLS, 2, "OK")
        with recording(one):  # active already, so it counts once and stays active
            record(CALLS, 3, "OK")
        record(CALLS, 4, "OK")
    record(CALLS, 5, "late")
    assert one.values == two.values == {("test.calls", "OK"): [2, 3, 4]}
    assert (one.closed, two.closed) == (1, 1)


def test_no_listener_is_added_without_a_backend():
    before = has_listeners()
    with recording():
        assert has_listeners() == before
    with recording(Held()):
        assert has_listeners()
    assert has_listeners() == before


def test_a_backend_that_fails_is_logged_once_and_disturbs_nothing(caplog):
    class Broken(Metrics):
        def instrument(self, metric):
            def fail(value, labels):
                raise OSError("disk full")

            return fail

    held = Held()
    with recording(Broken(), held), caplog.at_level(logging.ERROR):
        record(CALLS, 1, "OK")
        record(CALLS, 1, "OK")
    assert held.values == {("test.calls", "OK"): [1, 1]}
    (logged,) = [r for r in caplog.records if "Broken failed to record" in r.getMessage()]
    assert logged.exc_info


def test_a_backend_that_fails_to_close_is_logged_and_the_others_are_closed(caplog):
    class Broken(Held):
        def close(self):
            raise OSError("disk full")

    held = Held()
    with recording(Broken(), held):
        record(CALLS, 1, "OK")
    assert held.closed == 1
    assert "Broken failed to close" in caplog.text
    assert "disk full" in caplog.text


def note(recorder: Recorder, value: float) -> None:
    assert recorder.record is not None
    recorder.record(value)


def test_a_recorder_follows_the_active_backends():
    recorder = Recorder(CALLS, "OK")
    assert recorder.record is None
    one, two = Held(), Held()
    with recording(one):
        note(recorder, 1)
        with recording(two):
            note(recorder, 2)
            late = Recorder(CALLS, "late")
            note(late, 3)
        note(recorder, 4)
    assert recorder.record is None
    assert one.values == {("test.calls", "OK"): [1, 2, 4], ("test.calls", "late"): [3]}
    assert two.values == {("test.calls", "OK"): [2], ("test.calls", "late"): [3]}


def test_a_recorder_uses_the_quicker_function_of_a_backend_that_is_alone():
    quick: list[float] = []

    class Quick(Held):
        def bound(self, metric, labels):
            return quick.append if labels == ("OK",) else None

    held, recorders = Quick(), [Recorder(CALLS, "OK"), Recorder(CALLS, "ValueError")]
    with recording(held):
        for recorder in recorders:
            note(recorder, 1)
        with recording(Held()):
            note(recorders[0], 2)
    assert quick == [1]
    assert held.values == {("test.calls", "ValueError"): [1], ("test.calls", "OK"): [2]}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_starts_without_backends_and_may_have_its_own():
    held = Held()
    reader, writer = os.pipe()
    recorder = Recorder(CALLS, "child")
    with recording(held):
        child = os.fork()
        if child == 0:
            first = is_recording() or recorder.record is not None
            with recording(held):
                record(CALLS, 7, "child")
                heard = has_listeners()
            outcome = (first, heard, held.values, has_listeners())
            os.write(writer, repr(outcome).encode())
            os._exit(0)
        os.waitpid(child, 0)
        record(CALLS, 1, "parent")
    assert os.read(reader, 1000).decode() == repr(
        (False, True, {("test.calls", "child"): [7]}, False)
    )
    assert held.values == {("test.calls", "parent"): [1]}


def test_a_tracker_is_one_backend_or_a_list():
    held = Held()
    assert build_tracker(None) == ()
    assert build_tracker(held) == (held,)
    first, second = build_tracker([held, Held])
    assert first is held
    assert isinstance(second, Held)


def test_a_wrong_tracker_is_refused():
    with pytest.raises(PluginNotFoundError, match="no metrics 'nothing' is installed"):
        build_tracker("nothing")
    with pytest.raises(ConfigError, match=r"^tracker\.1: "):
        build_tracker([Held, 5])
    with pytest.raises(ComponentTypeError, match="tracker: "):
        build_tracker(dict)
