"""The objects of a cluster with one namespace: versions, history, owners, quotas."""

from __future__ import annotations

import asyncio
import copy
import datetime
import secrets
import uuid
from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]

NAMESPACE = "agl"
KINDS = {
    "deployments": ("Deployment", "apps/v1"),
    "replicasets": ("ReplicaSet", "apps/v1"),
    "jobs": ("Job", "batch/v1"),
    "pods": ("Pod", "v1"),
    "secrets": ("Secret", "v1"),
    "events": ("Event", "v1"),
}


class Refused(Exception):
    """The reply of an API server that refuses a request."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    @property
    def status(self) -> Object:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": self.code,
            "reason": self.reason,
            "message": self.message,
        }


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def matches(item: Object, selector: str) -> bool:
    labels = item["metadata"].get("labels", {})
    wanted = dict(part.split("=", 1) for part in selector.split(",") if part)
    return wanted.items() <= labels.items()


def has_fields(item: Object, selector: str) -> bool:
    for part in selector.split(",") if selector else ():
        path, wanted = part.split("=", 1)
        value: Any = item
        for key in path.split("."):
            value = value[key]
        if value != wanted:
            return False
    return True


class Objects:
    """All objects. Not thread-safe: everything runs in one event loop.

    Attributes:
        quota: Largest number of objects, by kind.
        version: The newest resource version.
        forgotten: Versions up to this one have no history any more.
    """

    def __init__(self) -> None:
        self.quota: dict[str, int] = {}
        self.version = 1000
        self.forgotten = 0
        self._items: dict[tuple[str, str], Object] = {}
        self._history: list[tuple[int, str, str, Object]] = []
        self._wakers: set[asyncio.Event] = set()

    # -- reading ---------------------------------------------------------------------------------

    def all(self, kind: str, selector: str = "", fields: str = "") -> list[Object]:
        found = (item for (k, _), item in self._items.items() if k == kind)
        return [each for each in found if matches(each, selector) and has_fields(each, fields)]

    def find(self, kind: str, name: str) -> Object | None:
        return self._items.get((kind, name))

    def get(self, kind: str, name: str) -> Object:
        found = self.find(kind, name)
        if found is None:
            raise Refused(404, "NotFound", f'{kind} "{name}" not found')
        return found

    def since(self, version: int, kind: str) -> Iterator[tuple[int, str, Object]]:
        for number, of, event, item in list(self._history):
            if number > version and of == kind:
                yield number, event, item

    async def changed(self, timeout: float | None = None) -> bool:
        """Wait for the next change; return whether there was one in time."""
        waker = asyncio.Event()
        self._wakers.add(waker)
        try:
            async with asyncio.timeout(timeout):
                await waker.wait()
        except TimeoutError:
            return False
        finally:
            self._wakers.discard(waker)
        return True

    # -- writing ---------------------------------------------------------------------------------

    def create(self, kind: str, item: Object) -> Object:
        item = copy.deepcopy(item)
        metadata = item["metadata"]
        if "generateName" in metadata:
            metadata["name"] = metadata.pop("generateName") + secrets.token_hex(3)[:5]
        name = metadata["name"]
        if (kind, name) in self._items:
            raise Refused(409, "AlreadyExists", f'{kind} "{name}" already exists')
        if len(self.all(kind)) >= self.quota.get(kind, 1_000_000):
            raise Refused(
                403,
                "Forbidden",
                f'{kind} "{name}" is forbidden: exceeded quota: small, requested: count/{kind}=1, '
                f"used: count/{kind}={self.quota[kind]}, limited: count/{kind}={self.quota[kind]}",
            )
        metadata |= {
            "uid": str(uuid.uuid4()),
            "namespace": NAMESPACE,
            "creationTimestamp": now(),
        }
        item["kind"], item["apiVersion"] = KINDS[kind]
        if kind == "pods":
            item["status"] = {"phase": "Pending"}
        self._items[kind, name] = item
        self._record(kind, "ADDED", item)
        return item

    def touch(self, kind: str, item: Object) -> None:
        """Record that an object was changed in place, unless it is gone."""
        if self.find(kind, item["metadata"]["name"]) is item:
            self._record(kind, "MODIFIED", item)

    def delete(self, kind: str, name: str, grace: int | None = None) -> Object:
        item = self.get(kind, name)
        if kind == "pods" and grace != 0:
            seconds = item["spec"].get("terminationGracePeriodSeconds", 30)
            metadata = item["metadata"]
            metadata["deletionGracePeriodSeconds"] = seconds if grace is None else grace
            metadata.setdefault("deletionTimestamp", now())
            self.touch(kind, item)
        else:
            self.remove(kind, item)
        return item

    def remove(self, kind: str, item: Object) -> None:
        if self._items.pop((kind, item["metadata"]["name"]), None) is not None:
            self._record(kind, "DELETED", item)

    def collect_garbage(self) -> None:
        """Delete the objects all of whose owners are gone."""
        uids = {item["metadata"]["uid"] for item in self._items.values()}
        for (kind, name), item in list(self._items.items()):
            owners = item["metadata"].get("ownerReferences", [])
            orphan = owners and not any(owner["uid"] in uids for owner in owners)
            if orphan and "deletionTimestamp" not in item["metadata"]:
                self.delete(kind, name)

    def forget_history(self) -> None:
        """Make every version of a watch too old, as a server does after some minutes."""
        self._history.clear()
        self.version += 1
        self.forgotten = self.version

    def _record(self, kind: str, event: str, item: Object) -> None:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self._history.append((self.version, kind, event, copy.deepcopy(item)))
        for waker in self._wakers:
            waker.set()


def owner_reference(item: Object) -> Object:
    return {
        "apiVersion": item["apiVersion"],
        "kind": item["kind"],
        "name": item["metadata"]["name"],
        "uid": item["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def owned_by(items: list[Object], owner: Object) -> list[Object]:
    uid = owner["metadata"]["uid"]
    return [
        item
        for item in items
        if any(each["uid"] == uid for each in item["metadata"].get("ownerReferences", []))
    ]
