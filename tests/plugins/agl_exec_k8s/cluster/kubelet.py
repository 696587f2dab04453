"""The kubelet of the only node: a pod's container is a real process with its children."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.plugins.agl_exec_k8s.cluster.objects import Object, Objects, now

BACK_OFF = 0.5
"""Seconds before the second restart of a container; doubled for each one."""


class Kubelet:
    """Runs pods.

    Args:
        objects: The objects.
        images: The folder of each image, in which its containers run.
        logs: Folder for the logs of containers.
    """

    def __init__(self, objects: Objects, images: dict[str, Path], logs: Path) -> None:
        self.objects, self.images, self.logs = objects, images, logs
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._causes: dict[str, str] = {}
        """Why a container is being killed, by the uid of its pod."""
        self._restarts: dict[str, int] = {}
        self.exit_codes: list[int] = []
        self._names: dict[str, str] = {}

    async def run(self) -> None:
        try:
            while True:
                for pod in self.objects.all("pods"):
                    uid = pod["metadata"]["uid"]
                    if uid not in self._tasks:
                        self._names[pod["metadata"]["name"]] = uid
                        self._tasks[uid] = asyncio.create_task(self._keep(pod, uid))
                for task in self._tasks.values():
                    if task.done():
                        task.result()  # a fault of this kubelet
                await self.objects.changed()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def kill(self, name: str, cause: str) -> None:
        """Kill the container of a pod: ``OOMKilled`` or ``Error``; ``Evicted`` ends the pod."""
        uid = self._names[name]
        self._causes[uid] = cause
        _kill_group(self._processes[uid])

    def log(self, name: str, previous: bool) -> str:
        uid = self._names[name]
        path = self._log_path(uid, self._restarts.get(uid, 0) - (1 if previous else 0))
        return path.read_text() if path.exists() else ""

    def _log_path(self, uid: str, restart: int) -> Path:
        return self.logs / f"{uid}-{restart}.log"

    # -- one pod ---------------------------------------------------------------------------------

    async def _keep(self, pod: Object, uid: str) -> None:
        """Run the containers of a pod, one after the other, until it ends."""
        self._set_state(pod, {"waiting": {"reason": "ContainerCreating"}}, phase="Pending")
        spec = pod["spec"]
        image = spec["containers"][0]["image"]
        if image not in self.images:
            message = f'Back-off pulling image "{image}"'
            self._set_state(pod, {"waiting": {"reason": "ImagePullBackOff", "message": message}})
            await self._deletion(pod)
            self.objects.remove("pods", pod)
            return
        restart, back_off = 0, BACK_OFF
        while True:
            self._restarts[uid] = restart
            ended = await self._run_container(pod, uid, restart)
            cause = self._causes.pop(uid, None)
            if not self._is_there(pod) or self._is_deleted(pod):
                self._set_state(pod, {"terminated": ended})
                self.objects.remove("pods", pod)
                return
            if cause == "Evicted":
                pod["status"] |= {
                    "reason": "Evicted",
                    "message": "The node was low on resource: memory.",
                }
                self._set_state(pod, {"terminated": ended}, phase="Failed")
            elif spec["restartPolicy"] == "Never":
                phase = "Failed" if ended["exitCode"] else "Succeeded"
                self._set_state(pod, {"terminated": ended}, phase=phase)
            if pod["status"]["phase"] in ("Failed", "Succeeded"):
                await self._deletion(pod)
                self.objects.remove("pods", pod)
                return
            self._set_state(pod, {"terminated": ended}, restart=restart)
            if restart:
                waiting = {"reason": "CrashLoopBackOff", "message": "back-off restarting"}
                self._set_state(pod, {"waiting": waiting}, last=ended, restart=restart)
                with suppress(TimeoutError):
                    async with asyncio.timeout(back_off):
                        await self._deletion(pod)
                        self.objects.remove("pods", pod)
                        return
                back_off *= 2
            restart += 1

    async def _run_container(self, pod: Object, uid: str, restart: int) -> dict[str, Any]:
        """Run one container to its end; return its state ``terminated``."""
        container = pod["spec"]["containers"][0]
        env = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self.logs),
            **{item["name"]: self._value(pod, item) for item in container["env"]},
        }
        with self._log_path(uid, restart).open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(_expanded(word, env) for word in container["command"]),
                cwd=self.images[container["image"]],
                env=env,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes[uid] = process
        started = now()
        self._set_state(pod, {"running": {"startedAt": started}}, phase="Running", restart=restart)
        exited = asyncio.ensure_future(process.wait())
        deleted = asyncio.ensure_future(self._deletion(pod))
        try:
            await asyncio.wait((exited, deleted), return_when=asyncio.FIRST_COMPLETED)
            if not exited.done():
                await self._terminate(pod, process, exited)
            code = await exited
        finally:
            deleted.cancel()
            _kill_group(process)
            await process.wait()
        code = 128 - code if code < 0 else code
        self.exit_codes.append(code)
        ended = {
            "exitCode": code,
            "reason": self._reason(uid, code),
            "startedAt": started,
            "finishedAt": now(),
            "containerID": f"local://{uid}-{restart}",
        }
        fallback = container["terminationMessagePolicy"] == "FallbackToLogsOnError"
        if code and fallback and self._causes.get(uid) != "Evicted":
            ended["message"] = self._log_path(uid, restart).read_text()[-2048:]
        return ended

    def _reason(self, uid: str, code: int) -> str:
        if self._causes.get(uid) == "OOMKilled":
            return "OOMKilled"
        return "Error" if code else "Completed"

    async def _terminate(
        self, pod: Object, process: asyncio.subprocess.Process, exited: asyncio.Future[int]
    ) -> None:
        """End a container whose pod is deleted: SIGTERM, its grace period, SIGKILL."""
        if self._is_there(pod):
            with suppress(ProcessLookupError):
                process.terminate()
            grace = pod["metadata"]["deletionGracePeriodSeconds"]
            gone = asyncio.ensure_future(self._removal(pod))
            await asyncio.wait((exited, gone), timeout=grace, return_when="FIRST_COMPLETED")
            gone.cancel()
        _kill_group(process)

    def _value(self, pod: Object, variable: dict[str, Any]) -> str:
        source = variable.get("valueFrom", {})
        if "secretKeyRef" in source:
            reference = source["secretKeyRef"]
            return self.objects.get("secrets", reference["name"])["stringData"][reference["key"]]
        if "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == "metadata.uid"
            return pod["metadata"]["uid"]
        return variable["value"]

    # -- the object ------------------------------------------------------------------------------

    def _set_state(
        self,
        pod: Object,
        state: dict[str, Any],
        *,
        phase: str | None = None,
        last: dict[str, Any] | None = None,
        restart: int = 0,
    ) -> None:
        status = pod["status"]
        if phase is not None:
            status["phase"] = phase
        previous = (status.get("containerStatuses") or [{}])[0]
        ended = previous.get("state", {}).get("terminated")
        kept = {"terminated": last or ended} if last or ended else previous.get("lastState", {})
        container = pod["spec"]["containers"][0]
        status["containerStatuses"] = [
            {
                "name": container["name"],
                "image": container["image"],
                "ready": "running" in state,
                "restartCount": restart,
                "state": state,
                "lastState": kept,
            }
        ]
        self.objects.touch("pods", pod)

    def _is_there(self, pod: Object) -> bool:
        return self.objects.find("pods", pod["metadata"]["name"]) is pod

    def _is_deleted(self, pod: Object) -> bool:
        return "deletionTimestamp" in pod["metadata"]

    async def _deletion(self, pod: Object) -> None:
        while self._is_there(pod) and not self._is_deleted(pod):
            await self.objects.changed()

    async def _removal(self, pod: Object) -> None:
        while self._is_there(pod):
            await self.objects.changed()


def _expanded(word: str, env: dict[str, str]) -> str:
    """Replace ``$(NAME)``, as Kubernetes does in commands."""
    return re.sub(r"\$\((\w+)\)", lambda found: env.get(found[1], found[0]), word)


def _kill_group(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
