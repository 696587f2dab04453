"""The API server as a run uses it: the objects of one namespace, as JSON."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import kubernetes
import urllib3
from kubernetes.client import ApiException
from kubernetes.config import kube_config

from agl_core.errors import LaunchError
from agl_exec_k8s.config import KubernetesConfig
from agl_exec_k8s.manifests import reference

__all__ = ["ERRORS", "Api", "delays", "described", "is_passing", "status_of"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

ERRORS: Final = (ApiException, urllib3.exceptions.HTTPError)
"""The errors of a call: a refusal, or a lost connection."""
_TIMEOUT: Final = (5.0, 20.0)  # seconds, to connect and to read
_LOG_BYTES: Final = 20_000
"""The end of a pod's log that is fetched: a traceback fits, and a message stays readable."""
_MOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PASSING: Final = frozenset({0, 429, 500, 502, 503, 504})
_PLURALS: Final = {
    "deployments": "deployment",
    "events": "event",
    "jobs": "job",
    "pods": "pod",
    "secrets": "secret",
}
WATCH_SECONDS: Final = 30
"""Length of one watch request. A server that is away without a word is noticed after it."""


class Api:
    """A client of one namespace; thread-safe.

    Args:
        config: Options of the strategy.

    Attributes:
        namespace: The namespace.
        host: Host of the API server.
        port: Its port.

    Raises:
        LaunchError: There is no configuration of a cluster.
    """

    def __init__(self, config: KubernetesConfig) -> None:
        try:
            client, namespace = _connect(config)
        except kubernetes.config.ConfigException as error:
            raise LaunchError(
                f"no Kubernetes cluster is configured: {error}; set KUBECONFIG, or the option "
                "kubeconfig"
            ) from error
        core = kubernetes.client.CoreV1Api(client)
        apps = kubernetes.client.AppsV1Api(client)
        batch = kubernetes.client.BatchV1Api(client)
        self._apis = {
            "pods": core,
            "secrets": core,
            "events": core,
            "deployments": apps,
            "jobs": batch,
        }
        self._patience = config.api_timeout
        self.namespace = config.namespace or namespace
        address = urlsplit(client.configuration.host)
        self.host = address.hostname or ""
        self.port = address.port or (443 if address.scheme == "https" else 80)

    # -- objects ---------------------------------------------------------------------------------

    def create(
        self, kind: str, manifest: dict[str, Any], *, patiently: bool = True
    ) -> dict[str, Any]:
        """Create an object.

        Args:
            kind: Plural of its kind.
            manifest: The object.
            patiently: Whether to wait for a server that is away.

        Raises:
            ApiException: The server refuses it.
        """
        name, tries = manifest["metadata"]["name"], 0

        def create() -> dict[str, Any]:
            nonlocal tries
            tries += 1
            try:
                return self._json(self._method("create", kind), self.namespace, manifest)
            except ApiException as error:
                if tries == 1 or error.status != 409:
                    raise
                # The reply to an earlier one was lost. A run may not read its Secret.
                if kind != "secrets":
                    return self.get(kind, name)
                self.delete(kind, name, patiently=False)
                return self._json(self._method("create", kind), self.namespace, manifest)

        return self._patiently(create, f"create {kind} {name}") if patiently else create()

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Return an object."""
        return self._json(self._method("read", kind), name, self.namespace)

    def delete(
        self, kind: str, name: str, *, by_force: bool = False, patiently: bool = True
    ) -> None:
        """Delete an object and what it owns.

        Args:
            kind: Plural of the kind.
            name: Name of the object.
            by_force: Whether to kill a pod at once.
            patiently: Whether to wait for a server that is away.
        """
        options: dict[str, Any] = {"propagation_policy": "Background"}
        if by_force:
            options["grace_period_seconds"] = 0

        def delete() -> None:
            try:
                self._json(self._method("delete", kind), name, self.namespace, **options)
            except ApiException as error:
                if error.status != 404:
                    raise

        if patiently:
            self._patiently(delete, f"delete {kind} {name}")
        else:
            delete()

    def names(self, kind: str, selector: str) -> list[str]:
        """Return the names of the objects with these labels; waits for a server that is away."""
        found, _ = self._patiently(lambda: self.list(kind, selector), f"list {kind}")
        return [item["metadata"]["name"] for item in found]

    def list(self, kind: str, selector: str) -> tuple[list[dict[str, Any]], str]:
        """Return the objects with these labels, and the version of the list."""
        method = self._method("list", kind)
        found = self._json(method, self.namespace, label_selector=selector)
        return found["items"], found["metadata"]["resourceVersion"]

    def refusals(self, owners: str) -> dict[str, str]:
        """Return why no pod could be created for owners of a kind: the last message by name."""
        method = self._method("list", "events")
        chosen = f"reason=FailedCreate,involvedObject.kind={owners}"
        found = self._json(method, self.namespace, field_selector=chosen)["items"]
        return {each["involvedObject"]["name"]: each.get("message") or "" for each in found}

    def watch(self, kind: str, selector: str, version: str) -> urllib3.HTTPResponse:
        """Return the stream of changes after a version: one JSON event per line."""
        return self._request(
            self._method("list", kind),
            self.namespace,
            label_selector=selector,
            watch=True,
            resource_version=version,
            allow_watch_bookmarks=True,
            timeout_seconds=WATCH_SECONDS,
            _request_timeout=(_TIMEOUT[0], WATCH_SECONDS + 10.0),
        )

    def log(self, pod: str, container: str, lines: int, *, previous: bool) -> str:
        """Return the end of a container's log.

        Args:
            pod: Name of the pod.
            container: Name of the container.
            lines: Number of lines.
            previous: Whether to read the log of the container that ran before this one.
        """
        response = self._request(
            self._apis["pods"].read_namespaced_pod_log,
            pod,
            self.namespace,
            container=container,
            tail_lines=lines,
            previous=previous,
            limit_bytes=_LOG_BYTES,
        )
        return response.data.decode(errors="replace")

    def this_pod(self) -> dict[str, Any] | None:
        """Return an owner reference to the pod of this process; None outside of the namespace.

        Raises:
            LaunchError: The API server cannot be reached.
        """
        if not in_cluster():
            return None
        try:
            name = os.environ.get("HOSTNAME", "")
            pod = self._patiently(lambda: self.get("pods", name), f"read pods {name}")
            return reference("Pod", pod)
        except ApiException as error:  # another namespace, or the network of the node
            logger.debug("this pod is not found: %s", described(error))
            return None
        except urllib3.exceptions.HTTPError as error:
            raise LaunchError(f"the API server does not answer: {described(error)}") from error

    # -- calls -----------------------------------------------------------------------------------

    def _method(self, verb: str, kind: str) -> Callable[..., Any]:
        return getattr(self._apis[kind], f"{verb}_namespaced_{_PLURALS[kind]}")

    def _json(self, method: Callable[..., Any], *args: Any, **options: Any) -> dict[str, Any]:
        return json.loads(self._request(method, *args, **options).data)

    def _request(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        # The raw reply: models of the client refuse what a newer server adds, and cost time.
        response = method(
            *args, **{"_request_timeout": _TIMEOUT, "_preload_content": False, **options}
        )
        if not 200 <= response.status < 300:
            response.read()
            raise ApiException(http_resp=response)
        return response

    def _patiently(self, call: Callable[[], T], purpose: str) -> T:
        deadline = time.monotonic() + self._patience
        for delay in delays():
            try:
                return call()
            except ERRORS as error:
                if not is_passing(error) or time.monotonic() + delay > deadline:
                    raise
                logger.warning(
                    "The API server does not answer; will %s in %g s: %s",
                    *(purpose, delay, described(error)),
                )
            time.sleep(delay)
        raise AssertionError("delays are endless")


def delays() -> Generator[float]:
    """Yield the seconds between tries: growing, without an end."""
    delay = 0.5
    while True:
        yield delay
        delay = min(delay * 2, 10.0)


def status_of(error: Any) -> int:
    """Return the HTTP status of an error; 0 for a lost connection."""
    return (error.status or 0) if isinstance(error, ApiException) else 0


def is_passing(error: Exception) -> bool:
    """Tell whether a call may succeed later: the server is away or overloaded."""
    return status_of(error) in _PASSING


def described(error: Any) -> str:
    """Return the message of an error in one line."""
    if isinstance(error, ApiException) and error.body:
        try:
            return str(json.loads(error.body)["message"])
        except (ValueError, KeyError, TypeError):
            return f"{error.status} {error.reason}"
    return " ".join(str(error).split())


def _connect(config: KubernetesConfig) -> tuple[Any, str]:
    """Return a client and the namespace that its configuration names."""
    settings = kubernetes.client.Configuration()
    settings.retries = 0  # tries are counted and logged here
    if config.kubeconfig is None and config.context is None and in_cluster():
        kubernetes.config.load_incluster_config(client_configuration=settings)
        namespace = (_MOUNT / "namespace").read_text().strip()
        return kubernetes.client.ApiClient(settings), namespace
    file = config.kubeconfig
    kubernetes.config.load_kube_config(file, config.context, client_configuration=settings)
    # list_kube_config_contexts refuses a file that names no current context.
    read = kube_config.KubeConfigMerger(file or kube_config.KUBE_CONFIG_DEFAULT_LOCATION).config
    loader = kube_config.KubeConfigLoader(config_dict=read, active_context=config.context)
    chosen: Mapping[str, Any] = loader.current_context
    namespace = chosen["context"].get("namespace") or "default"
    return kubernetes.client.ApiClient(settings), namespace


def in_cluster() -> bool:
    """Tell whether this process runs in a pod with a service account."""
    return "KUBERNETES_SERVICE_HOST" in os.environ and (_MOUNT / "token").exists()
