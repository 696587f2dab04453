"""Lets agents call this run's servers directly, although the environment names an HTTP proxy.

HTTP clients send every call to the proxy in ``HTTP_PROXY``, also one to 127.0.0.1, where it ends in
an error: the proxy's own 127.0.0.1 is another machine. ``NO_PROXY`` lists the hosts to leave out.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from agl_core.hosts import is_loopback
from agl_core.types import LLM, ProxyLLM

if TYPE_CHECKING:
    from agl_core.types import Resource

logger = logging.getLogger(__name__)

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
# Programs read either spelling; some prefer one, some the other.
_EXCEPTIONS: Final = ("NO_PROXY", "no_proxy")
_lock: Final = threading.Lock()


def proxy_variables() -> list[str]:
    """Return the variables of this process's environment that name an HTTP proxy."""
    names = [each for name in _PROXIES for each in (name, name.lower())]
    return [name for name in names if os.environ.get(name)]


def call_directly(hosts: Iterable[str] = LOOPBACK) -> None:
    """Add hosts to ``NO_PROXY`` and ``no_proxy`` if an HTTP proxy is set, and log it. Thread-safe.

    Child processes that start later inherit it. A client that was made before keeps its proxy.
    """
    proxies = proxy_variables()
    if not proxies:
        return
    with _lock:
        given = ",".join(os.environ.get(name, "") for name in _EXCEPTIONS)
        known = dict.fromkeys(each.strip() for each in given.split(",") if each.strip())
        added = [host for host in dict.fromkeys(hosts) if host not in known]
        if "*" in known or not added:
            return
        value = ",".join([*known, *added])
        os.environ.update(dict.fromkeys(_EXCEPTIONS, value))
    logger.warning(
        "%s is set; added %s to NO_PROXY, so that agents reach agl's servers",
        proxies[0],
        ",".join(added),
    )


def call_models_directly(resources: Mapping[str, Resource]) -> None:
    """Do the same for the hosts of models that run on this machine or behind agl's proxy."""
    models = [one for one in resources.values() if isinstance(one, LLM)]
    if not models or not proxy_variables():
        return
    hosts = [(_host(one.get_base_url()), one) for one in models]
    call_directly(
        [host for host, one in hosts if host and (isinstance(one, ProxyLLM) or is_loopback(host))]
    )


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:  # the agent's client says what is wrong with it
        return ""
