from __future__ import annotations

import logging
import threading

import pluggy
import pytest

from agl_core.plugins import (
    add_listener,
    flush_listeners,
    hookimpl,
    notify,
    remove_listener,
)

LISTENER = """
from agl_core.plugins import hookimpl

heard = []

@hookimpl
def algorithm_step(step, metrics):
    heard.append((step, dict(metrics)))
"""


class Steps:
    def __init__(self) -> None:
        self.heard: list[object] = []

    @hookimpl
    def algorithm_step(self, algorithm, step):
        self.heard.append((algorithm, step))


class Failing:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    @hookimpl
    def algorithm_step(self):
        raise self.error


def step(number: int) -> None:
    notify("algorithm_step", algorithm="apo", step=number, metrics={"score": 0.5})
    flush_listeners()


@pytest.mark.usefixtures("here")
class TestAddedListeners:
    def test_a_listener_takes_the_parameters_it_wants(self):
        steps = Steps()
        name = add_listener(steps)
        step(0)
        step(1)
        remove_listener(name)
        step(2)
        assert steps.heard == [("apo", 0), ("apo", 1)]

    def test_a_listener_may_wrap_its_own_function(self):
        heard: list[object] = []

        class Wrapped(Steps):
            @hookimpl(wrapper=True, specname="algorithm_step")
            def around(self, step):
                heard.append(("before", step, list(self.heard)))
                yield
                heard.append(("after", step, list(self.heard)))

        class Alone:
            @hookimpl(wrapper=True)
            def algorithm_step(self, step):
                heard.append(("alone", step))
                yield

        add_listener(Wrapped())
        step(3)
        add_listener(Alone())
        step(4)
        assert ("alone", 4) in heard
        assert heard[:2] == [("before", 3, []), ("after", 3, [("apo", 3)])]

    @pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(3)])
    def test_one_that_raises_is_reported_and_the_others_are_called(self, caplog, error):
        before, after = Steps(), Steps()
        add_listener(before, "before")
        add_listener(Failing(error), "failing")
        add_listener(after, "after")
        with caplog.at_level(logging.ERROR):
            step(0)
            step(1)
        assert before.heard == after.heard == [("apo", 0), ("apo", 1)]
        messages = [record for record in caplog.records if "'failing'" in record.getMessage()]
        assert [bool(record.exc_info) for record in messages] == [True, False]

    @pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(3), KeyboardInterrupt()])
    def test_an_async_one_that_raises_is_reported_and_the_others_are_called(self, caplog, error):
        heard: list[int] = []

        class AsyncFailing:
            @hookimpl
            async def algorithm_step(self):
                raise error

        class AsyncSteps:
            @hookimpl
            async def algorithm_step(self, step):
                heard.append(step)

        add_listener(AsyncFailing(), "failing")
        add_listener(AsyncSteps(), "steps")
        with caplog.at_level(logging.ERROR):
            step(0)
            step(1)
        assert heard == [0, 1]
        assert any("'failing'" in record.getMessage() for record in caplog.records)

    def test_ctrl_c_in_an_inline_listener_is_ctrl_c(self):
        add_listener(Failing(KeyboardInterrupt()), inline=True)
        with pytest.raises(KeyboardInterrupt):
            step(0)

    def test_the_name_of_a_listener_is_unique(self):
        add_listener(Steps(), "mine")
        with pytest.raises(ValueError, match="there is a listener 'mine' already"):
            add_listener(Steps(), "mine")

    def test_a_listener_to_something_that_never_happens_is_refused(self):
        class Misspelt:
            @hookimpl
            def algorithm_stepp(self): ...

        class Wrong:
            @hookimpl
            def algorithm_step(self, epoch): ...

        for listener in (Misspelt(), Wrong()):
            with pytest.raises(pluggy.PluginValidationError):
                add_listener(listener)

    def test_threads_may_add_and_notify_at_once(self):
        listeners = [Steps() for _ in range(16)]
        threads = [threading.Thread(target=add_listener, args=(it,)) for it in listeners]
        threads += [threading.Thread(target=step, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        step(99)
        assert all(it.heard[-1] == ("apo", 99) for it in listeners)


class TestInstalledListeners:
    def install(self, here, spec_source, name: str, module: str) -> None:
        here.install(
            f"agl-{name}",
            entry_points={f"hook.{name}": f"{name}_hooks"},
            modules={
                f"{name}_hooks.py": spec_source("hook", name=name, module=f"{name}_listener"),
                f"{name}_listener.py": module,
            },
        )

    def test_they_are_loaded_at_the_first_event(self, here, spec_source):
        self.install(here, spec_source, "ear", LISTENER)
        step(7)
        import ear_listener  # pyright: ignore[reportMissingImports]

        assert ear_listener.heard == [(7, {"score": 0.5})]

    @pytest.mark.parametrize(
        "module",
        [
            "import agl_nothing_of_this_name",
            "raise SystemExit",
            "from agl_core.plugins import hookimpl\n@hookimpl\ndef no_such_event(): ...",
        ],
    )
    def test_one_that_does_not_load_is_reported_and_left_out(
        self, here, spec_source, caplog, module
    ):
        self.install(here, spec_source, "deaf", module)
        self.install(here, spec_source, "ear", LISTENER)
        with caplog.at_level(logging.ERROR):
            step(1)
            step(2)
        import ear_listener  # pyright: ignore[reportMissingImports]

        assert [number for number, _ in ear_listener.heard] == [1, 2]
        (message,) = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
        assert "hook.deaf of agl-deaf 1.0" in message

    def test_an_event_during_loading_reaches_no_listener(self, here, spec_source):
        noisy = "from agl_core.plugins import notify\n"
        noisy += "notify('algorithm_step', algorithm='x', step=0, metrics={})\n"
        self.install(here, spec_source, "noisy", noisy + LISTENER)
        step(1)
        import noisy_listener  # pyright: ignore[reportMissingImports]

        assert [number for number, _ in noisy_listener.heard] == [1]
