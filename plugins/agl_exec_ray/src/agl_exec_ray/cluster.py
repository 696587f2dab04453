"""The connection of this process to a Ray cluster."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import ray

from agl_core.errors import ConfigError, LaunchError
from agl_exec_ray.config import RayConfig

__all__ = ["Cluster", "connected"]

logger = logging.getLogger(__name__)

_CONNECT_SECONDS: Final = 5.0
"""Longest wait for the head node's port: a network answers, or drops packets, within it."""


@dataclass(frozen=True)
class Cluster:
    """A connected cluster.

    Attributes:
        host: The address at which its nodes reach this one; None is loopback.
        runtime_env: The environment that each actor has to ask for.
    """

    host: str | None
    runtime_env: dict[str, Any]


@contextmanager
def connected(config: RayConfig) -> Generator[Cluster]:
    """Connect to the cluster for a ``with`` block, unless this process is connected.

    Args:
        config: Options of the strategy.

    Raises:
        ConfigError: The address is one of Ray Client.
        LaunchError: The cluster cannot be reached or started.
    """
    if ray.is_initialized():
        yield Cluster(ray.util.get_node_ip_address(), config.runtime_env)
        return
    started = _connect(config)
    try:
        yield Cluster(None if started else ray.util.get_node_ip_address(), {})
    finally:
        ray.shutdown()


def _connect(config: RayConfig) -> bool:
    """Connect to a cluster; return whether it was started here."""
    address = config.address or os.environ.get("RAY_ADDRESS") or "auto"
    if address.startswith("ray://"):
        raise ConfigError(
            "Ray Client keeps this process outside the cluster, whose nodes cannot reach it: "
            "start the run on a node, with `ray job submit -- agl train ...`",
            path="strategy.address",
        )
    _check_reachable(address)
    # Without the job's own environment Ray cannot upload a local working_dir.
    options: dict[str, Any] = {"runtime_env": config.runtime_env or None, **config.init}
    try:
        if address != "local":
            try:
                ray.init(address=address, **options)
            except ConnectionError:
                if address != "auto":
                    raise
            else:
                return False
        logger.info("No Ray cluster is running here; starting one on this machine")
        ray.init(address="local", **{"include_dashboard": False, **options})
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise LaunchError(f"Ray cannot be used at {address}: {error}") from error
    return True


def _check_reachable(address: str) -> None:
    """Raise LaunchError if nothing listens at ``host:port``; Ray itself ends the process then."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise LaunchError(
            f"no Ray cluster answers at {address}: {error}; start its head with "
            "`ray start --head`, or leave out the address"
        ) from error
