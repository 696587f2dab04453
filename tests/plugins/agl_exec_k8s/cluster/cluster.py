"""The whole cluster, in a thread with an event loop."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
import yaml

from agl_testing import FaultyRelay
from tests.plugins.agl_exec_k8s.cluster.controllers import Controllers
from tests.plugins.agl_exec_k8s.cluster.kubelet import Kubelet
from tests.plugins.agl_exec_k8s.cluster.objects import KINDS, NAMESPACE, Object, Objects
from tests.plugins.agl_exec_k8s.cluster.server import ApiServer

T = TypeVar("T")
TOKEN = "token-of-the-driver"


class Cluster:
    """A cluster of one node; its methods may be called from any thread.

    Args:
        folder: Folder for logs and the kubeconfig.
        tls: Files with the certificate and the key of the API server; None serves plain HTTP.

    Attributes:
        images: The folder of each image.
        kubeconfig: A file with the address of the API server.
        port: Port of the API server on this machine.
    """

    def __init__(self, folder: Path, tls: tuple[Path, Path] | None = None) -> None:
        self._tls = tls
        self.images: dict[str, Path] = {}
        self.kubeconfig = folder / "kubeconfig"
        self._folder = folder
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))

    def __enter__(self) -> Cluster:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    # -- what tests do ---------------------------------------------------------------------------

    def objects(self, kind: str) -> list[Object]:
        return self._do(lambda: copy.deepcopy(self._objects.all(kind)))

    def left(self) -> list[str]:
        """Return every object that exists."""
        return [
            f"{kind}/{item['metadata']['name']}"
            for kind in KINDS
            if kind != "events"  # the server drops them after an hour
            for item in self.objects(kind)
        ]

    def calls(self) -> set[tuple[str, str]]:
        return self._do(lambda: set(self._server.calls))

    def deny(self, kind: str) -> None:
        self._do(lambda: self._server.denied.add(kind))

    def limit(self, kind: str, number: int) -> None:
        self._do(lambda: self._objects.quota.__setitem__(kind, number))

    def kill(self, pod: str, cause: str) -> None:
        self._do(lambda: self._kubelet.kill(pod, cause))

    def create(self, kind: str, item: Object) -> Object:
        return self._do(lambda: copy.deepcopy(self._objects.create(kind, item)))

    def delete(self, kind: str, name: str) -> None:
        self._do(lambda: self._objects.delete(kind, name))

    def forget_history(self) -> None:
        self._do(self._objects.forget_history)

    def go_away(self) -> None:
        """Make the API server unreachable; nodes and controllers go on."""

        def cut() -> None:
            self._relay.refuse = True
            self._relay.cut_all()

        self._do(cut)

    def come_back(self) -> None:
        self._do(lambda: setattr(self._relay, "refuse", False))

    def lose_reply(self) -> None:
        """Lose the reply to the next request; the request is executed."""
        self._do(lambda: self._relay.cut_replies(after_bytes=0))

    def wait_until(self, condition: Callable[[], bool], timeout: float = 30) -> None:
        """Wait until a condition holds, looking at each change of an object."""

        async def wait() -> None:
            async with asyncio.timeout(timeout):
                while not condition():
                    await self._objects.changed(0.2)

        self._await(wait())

    def found(self, kind: str) -> list[Object]:
        """Return the objects of a kind, for a condition of ``wait_until``."""
        return self._objects.all(kind)

    def running(self) -> list[str]:
        """Return the names of the pods whose container runs; also within ``wait_until``."""
        return [
            pod["metadata"]["name"]
            for pod in self._objects.all("pods")
            if any(
                "running" in each["state"] for each in pod["status"].get("containerStatuses", [])
            )
            and "deletionTimestamp" not in pod["metadata"]
        ]

    def log(self, pod: str) -> str:
        """Return the log of a pod's container; also within ``wait_until``."""
        return self._kubelet.log(pod, False)

    def exit_codes(self) -> list[int]:
        """Return how each container that has ended did, in their order."""
        return self._do(lambda: list(self._kubelet.exit_codes))

    def _do(self, action: Callable[[], T]) -> T:
        async def do() -> T:
            return action()

        return self._await(do())

    def _await(self, awaitable: Awaitable[T]) -> T:
        return asyncio.run_coroutine_threadsafe(_coroutine(awaitable), self._loop).result()

    # -- the thread ------------------------------------------------------------------------------

    async def _main(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self._objects = Objects()
        self._kubelet = Kubelet(self._objects, self.images, self._folder)
        self._server = ApiServer(self._objects, self._kubelet.log, TOKEN)
        config = uvicorn.Config(self._server.app, port=0, log_level="error", lifespan="off")
        if self._tls is not None:
            config.ssl_certfile, config.ssl_keyfile = map(str, self._tls)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:  # uvicorn has no event for it
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with AsyncExitStack() as stack:
            self._relay = await stack.enter_async_context(FaultyRelay(port))
            self.port = self._relay.port
            self._write_kubeconfig(self.port)
            parts = [
                asyncio.create_task(Controllers(self._objects).run()),
                asyncio.create_task(self._kubelet.run()),
                asyncio.create_task(self._end.wait()),
            ]
            self._ready.set()
            done, left = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in left:
                part.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        server.should_exit = server.force_exit = True
        await serving
        for part in done:
            part.result()

    def _write_kubeconfig(self, port: int) -> None:
        server = {"server": f"http://127.0.0.1:{port}"}
        context = {"cluster": "local", "user": "driver", "namespace": NAMESPACE}
        content: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "local", "cluster": server}],
            "users": [{"name": "driver", "user": {"token": TOKEN}}],
            "contexts": [{"name": "local", "context": context}],
            "current-context": "local",
        }
        self.kubeconfig.write_text(yaml.safe_dump(content))


async def _coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable
