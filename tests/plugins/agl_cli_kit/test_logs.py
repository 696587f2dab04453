from __future__ import annotations

import io
import logging
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.logging import RichHandler

from agl_cli_kit import configure_logger, logs, setup_logging, setup_module_logging

NAMES = ("agl_core", "agl_core.runner", "agl_core.store.server", "other", "py.warnings")


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in NAMES]
    before = [(log.level, log.propagate, log.disabled) for log in loggers]
    root_handlers = list(logging.root.handlers)
    setup_logging(console=False)
    for log in loggers:  # tests that ran before in this process may have left theirs
        log.handlers.clear()
        log.propagate = True  # pytest adds its own handlers to loggers that do not propagate
    yield
    setup_logging(console=False)
    for log, (level, propagate, disabled) in zip(loggers, before, strict=True):
        log.setLevel(level)
        log.propagate = propagate
        log.disabled = disabled
    assert logging.root.handlers == root_handlers, "the root logger is not ours to touch"


def _collecting() -> tuple[logging.Handler, io.StringIO]:
    stream = io.StringIO()
    return logging.StreamHandler(stream), stream


def test_the_plain_format() -> None:
    handler, stream = _collecting()
    setup_logging(console=False, extra_handlers=[handler])
    logging.getLogger("agl_core.runner").info("rollout %s done", "ro-1")
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d \[INFO\] \(Process-\d+ agl_core\.runner\) rollout ro-1 done\n",
        stream.getvalue(),
    )


def test_console_goes_to_stderr_plain_or_rich(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup_logging(color=True)
    (handler,) = logging.getLogger("agl_core").handlers
    assert type(handler) is logging.StreamHandler, "standard error is not a terminal here"
    setup_logging(color=False)
    logging.getLogger("agl_core").warning("plain")
    out, err = capsys.readouterr()
    assert (out, err.endswith(f"[WARNING] (Process-{os.getpid()} agl_core) plain\n")) == ("", True)

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    setup_logging(color=True)
    (handler,) = logging.getLogger("agl_core").handlers
    assert isinstance(handler, RichHandler)
    logging.getLogger("agl_core").warning("rich %s", "[not markup]")
    out, err = capsys.readouterr()
    assert out == ""
    assert "WARNING" in err
    assert "rich [not markup]" in err


@pytest.mark.parametrize("terminal", [True, False])
def test_foreign_text_is_cut_and_escaped_in_little_time(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    setup_logging(color=True)
    foreign = "\x1b[31mred\x1b]0;title\x07 \ud800 a\u202eb\n12:00:00 [ERROR] forged"
    started = time.process_time()
    for text in (foreign, "f" * 100_000, "/a=1.0" * 20_000):
        logging.getLogger("agl_core.store").error("span %s is stored already", text)
    try:
        raise ValueError(foreign + "x" * 100_000)
    except ValueError as error:
        logging.getLogger("agl_core.store").error("failed", exc_info=error)
    assert time.process_time() - started < 1, "100 kB took over a minute"
    _, err = capsys.readouterr()
    assert not {"\x07", "\ud800", "\u202e"} & set(err)
    assert "\x1b]0" not in err
    assert r"\x1b[31mred" in err
    assert len(err) < 100_000
    assert not [line for line in err.splitlines() if line.startswith("12:00:00 [ERROR]")]


def test_a_traceback_is_logged_once_and_then_counted(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging(color=False)
    for number in range(3):
        try:
            raise KeyError(f"prompt {number}")
        except KeyError:
            logging.getLogger("agl_core").exception("rollout %d failed", number)
    _, err = capsys.readouterr()
    assert err.count("Traceback (most recent call last)") == 1
    assert "rollout 1 failed: KeyError: 'prompt 1' (traceback as before; seen 2 times)\n" in err
    assert "seen 3 times" in err


def test_a_handler_keeps_the_formatter_it_has() -> None:
    handler, stream = _collecting()
    handler.setFormatter(logging.Formatter("<%(message)s>"))
    setup_logging(console=False, extra_handlers=[handler])
    logging.getLogger("agl_core").info("x")
    assert stream.getvalue() == "<x>\n"


def test_levels_by_name_and_number() -> None:
    handler, stream = _collecting()
    setup_logging("warning", console=False, extra_handlers=[handler])
    logging.getLogger("agl_core").info("no")
    setup_logging(logging.DEBUG, console=False, extra_handlers=[handler])
    logging.getLogger("agl_core").debug("yes")
    assert "no" not in stream.getvalue()
    assert stream.getvalue().count("yes") == 1
    with pytest.raises(ValueError, match=r"'LOUD' is not a log level; use one of .*DEBUG"):
        setup_logging("LOUD")


def test_a_bad_level_changes_nothing() -> None:
    setup_logging("ERROR", console=False)
    with pytest.raises(ValueError):
        setup_logging("INFO", submodule_levels={"agl_core.runner": "LOUD"})
    assert logging.getLogger("agl_core").level == logging.ERROR
    assert logging.getLogger("agl_core").handlers == []


def test_again_replaces_and_leaves_foreign_handlers_alone() -> None:
    foreign, _ = _collecting()
    logger = logging.getLogger("agl_core")
    logger.addHandler(foreign)
    try:
        for _ in range(3):
            setup_logging(color=False)
        assert len(logger.handlers) == 2
        assert foreign in logger.handlers
    finally:
        logger.removeHandler(foreign)


def test_a_level_of_a_whole_package_lasts_until_the_next_call() -> None:
    handler, stream = _collecting()
    setup_logging(console=False, submodule_levels={"agl_core": "ERROR"}, extra_handlers=[handler])
    logging.getLogger("agl_core.runner").info("quiet")
    setup_logging(console=False, extra_handlers=[handler])
    logging.getLogger("agl_core.runner").info("again")
    assert "quiet" not in stream.getvalue()
    assert "again" in stream.getvalue()


def test_a_quieter_submodule_and_a_louder_one_that_warns() -> None:
    handler, stream = _collecting()
    options = {"console": False, "extra_handlers": [handler]}
    setup_logging(submodule_levels={"agl_core.runner": "ERROR"}, **options)
    logging.getLogger("agl_core.runner").warning("quiet")
    with pytest.warns(UserWarning, match=r"agl_core\.store\.server logs more \(DEBUG\)"):
        setup_logging(submodule_levels={"agl_core.store.server": "DEBUG"}, **options)
    logging.getLogger("agl_core.store.server").debug("loud")
    logging.getLogger("agl_core.runner").info("again as the rest")
    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()
    assert "again as the rest" in stream.getvalue()


def test_one_file_for_everything(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run.log"
    setup_logging(console=False, files=path, apply_to=["other"])
    logging.getLogger("agl_core.runner").info("ours")
    logging.getLogger("other").info("theirs")
    assert [line.split(") ")[1] for line in path.read_text().splitlines()] == ["ours", "theirs"]


def test_files_by_logger_share_a_path(tmp_path: Path) -> None:
    both, alone = tmp_path / "both.log", tmp_path / "alone.log"
    files = {"agl_core.runner": both, "agl_core": str(alone), "other": both}
    setup_logging(console=False, files=files)
    logging.getLogger("other").setLevel("INFO")
    logging.getLogger("agl_core.runner").info("run")
    logging.getLogger("other").info("other")
    assert [line.split(") ")[1] for line in both.read_text().splitlines()] == ["run", "other"]
    assert "run" in alone.read_text()
    (handler,) = logging.getLogger("agl_core.runner").handlers
    assert logging.getLogger("other").handlers == [handler]
    setup_logging(console=False)
    assert logging.getLogger("other").handlers == []
    assert isinstance(handler, logging.FileHandler)
    assert handler.stream is None, "the file is closed"


def test_propagation(caplog: pytest.LogCaptureFixture) -> None:
    setup_logging(console=False)
    logging.getLogger("agl_core").info("kept")
    setup_logging(console=False, propagate=True)
    with caplog.at_level("INFO"):
        logging.getLogger("agl_core").info("passed on")
    assert [record.message for record in caplog.records] == ["passed on"]


def test_others_are_disabled_only_if_asked() -> None:
    other = logging.getLogger("other")
    kept = [logging.getLogger(f"{name}.inner") for name in ("agl_runner", "agl_cli_kit", "mine")]
    setup_logging(console=False)
    assert not other.disabled
    before = {
        log
        for log in logging.root.manager.loggerDict.values()
        if isinstance(log, logging.Logger) and not log.disabled
    }
    try:
        setup_logging(console=False, disable_existing_loggers=True, apply_to=["mine"])
        assert other.disabled
        assert [logger.name for logger in kept if logger.disabled] == []
        assert not logging.getLogger("agl_core.runner").disabled
    finally:
        for log in before:
            log.disabled = False


def test_warnings_are_captured_and_let_go() -> None:
    handler, stream = _collecting()
    setup_logging(console=False, extra_handlers=[handler], capture_warnings=True)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("careful", stacklevel=1)
    assert "UserWarning: careful" in stream.getvalue()
    setup_logging(console=False)
    with pytest.warns(UserWarning, match="direct"):
        warnings.warn("direct", stacklevel=1)


def test_one_module() -> None:
    handler, stream = _collecting()
    logger = setup_module_logging(
        "DEBUG", name="agl_core.runner", console=False, extra_handlers=[handler]
    )
    assert logger is logging.getLogger("agl_core.runner")
    logger.debug("seen")
    assert stream.getvalue().count("seen") == 1
    setup_module_logging("DEBUG", name="agl_core.runner", console=False)
    assert logger.handlers == []


def test_configure_logger_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="setup_logging"):
        logger = configure_logger(logging.WARNING)
    assert logger.name == "agl_core"
    assert logger.level == logging.WARNING
    assert len(logger.handlers) == 1


def test_public_names() -> None:
    assert all(hasattr(logs, name) for name in logs.__all__)


def test_a_traceback_may_begin_later_than_the_exception_does(capsys):
    def outer():
        inner()

    def inner():
        raise KeyError("x")

    logger = setup_module_logging(name="a_test_of_tracebacks", color=False)
    with pytest.raises(KeyError) as raised:
        outer()
    last = raised.tb
    while last.tb_next is not None:
        last = last.tb_next
    logger.error("failed", exc_info=(KeyError, raised.value, last))
    said = capsys.readouterr().err
    assert "in inner" in said
    assert "in outer" not in said
