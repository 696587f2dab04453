"""Follows the objects of a run, through lost connections and an API server that is away."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import urllib3
from kubernetes.client import ApiException

from agl_exec_k8s.api import ERRORS, Api, delays, described, is_passing, status_of

__all__ = ["Watcher"]

logger = logging.getLogger(__name__)

_GONE = 410  # the server has forgotten the version
OnChange = Callable[[dict[str, Any], bool], None]


class Watcher:
    """Lists and watches the objects of one kind in a thread.

    Every object is reported when it is first seen and when it changes, and once with ``True`` when
    it is gone, also if it went while the server was away.

    Args:
        api: The client.
        kind: Plural of the kind.
        selector: Their labels.
        on_change: Called in the thread with an object, and whether it is gone; called again if it
            raises because the server is away.
        on_failure: Called in the thread with an error after which nothing is watched any more.
    """

    def __init__(
        self,
        api: Api,
        kind: str,
        selector: str,
        on_change: OnChange,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._api, self._kind, self._selector = api, kind, selector
        self._on_change, self._on_failure = on_change, on_failure
        self._known: dict[str, dict[str, Any]] = {}
        self._version: str | None = None
        self._stream: urllib3.HTTPResponse | None = None
        self._lock = threading.Lock()  # of the stream, against a stop while it is opened
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._main, name=f"agl-k8s-{kind}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for it."""
        self._ended.set()
        with self._lock:
            if self._stream is not None:
                with suppress(ValueError, RuntimeError):  # it has just been read to its end
                    self._stream.shutdown()
        if self._thread.ident is not None:
            self._thread.join()

    # -- the thread ------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._run()
        except Exception as error:
            logger.exception("%s are not watched any more", self._kind.capitalize())
            self._on_failure(error)

    def _run(self) -> None:
        waits = delays()
        while not self._ended.is_set():
            try:
                if self._version is None:
                    self._list()
                self._follow()
                waits = delays()
            except ERRORS as error:
                if self._ended.is_set():
                    return
                if status_of(error) == _GONE:
                    self._version = None
                    continue
                if not is_passing(error):
                    raise
                delay = next(waits)
                logger.warning(
                    "The API server is away; the run goes on. Looking for %s again in %g s: %s",
                    self._kind,
                    delay,
                    described(error),
                )
                self._ended.wait(delay)

    def _list(self) -> None:
        found, version = self._api.list(self._kind, self._selector)
        there = {item["metadata"]["uid"] for item in found}
        for uid in [uid for uid in self._known if uid not in there]:
            self._forget(self._known[uid])
        for item in found:
            self._note(item)
        self._version = version

    def _follow(self) -> None:
        """Report changes until the stream ends."""
        assert self._version is not None
        stream = self._api.watch(self._kind, self._selector, self._version)
        with self._lock:
            if self._ended.is_set():
                stream.close()
                return
            self._stream = stream
        try:
            for line in _lines(stream):
                self._take(json.loads(line))
        finally:
            with self._lock:
                self._stream = None
            stream.close()

    def _take(self, event: dict[str, Any]) -> None:
        item = event["object"]
        if event["type"] == "ERROR":
            error = ApiException(status=item.get("code"), reason=item.get("reason"))
            error.body = json.dumps(item)
            raise error
        if event["type"] == "DELETED":
            self._forget(item)
        elif event["type"] != "BOOKMARK":
            self._note(item)
        # Last: a change during which the server goes away is seen again.
        self._version = item["metadata"]["resourceVersion"]

    def _forget(self, item: dict[str, Any]) -> None:
        self._on_change(item, True)
        self._known.pop(item["metadata"]["uid"], None)

    def _note(self, item: dict[str, Any]) -> None:
        self._known[item["metadata"]["uid"]] = item
        self._on_change(item, False)


def _lines(stream: urllib3.HTTPResponse) -> Any:
    rest = b""
    for chunk in stream.stream(None):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line)
