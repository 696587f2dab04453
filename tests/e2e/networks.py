"""Hosts in network namespaces, with links that are cut, slow, lossy and asymmetric.

A host has one TUN device, whose packets a thread of the test reads, delays or drops, and writes to
the device of their destination. So hosts talk real TCP with retransmissions, and no kernel module
for faulty networks is needed.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import random
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

__all__ = ["Network", "missing"]

_TUN: Final = Path("/dev/net/tun")
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN_NO_PI: Final = 0x1001
_CLONE_NEWNET: Final = 0x40000000
_PACKET: Final = 65536
_DESTINATION: Final = slice(16, 20)  # of an IPv4 header, RFC 791


def missing() -> str:
    """Return what this machine lacks for namespaces; empty if it lacks nothing."""
    if os.name != "posix" or os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "the command ip (iproute2) is not installed"
    if not _TUN.exists():
        return f"{_TUN} does not exist"
    name = f"agl-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"namespaces cannot be made: {made.stderr.strip()}"
    try:
        os.close(_open_device(name))
    except OSError as error:
        return f"TUN devices cannot be made: {error}"
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


class Network:
    """Hosts in namespaces of their own, joined by a faulty router.

    Args:
        hosts: Names of the hosts.

    Attributes:
        addresses: Address of each host.
        loss: Share of the packets that are dropped.
        delay: Seconds that a packet to each host takes.
        cut: Hosts that are cut off.
        dropped: Packets that were dropped.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self.addresses = {host: f"10.93.0.{i}" for i, host in enumerate(hosts, 1)}
        self.loss = 0.0
        self.delay = dict.fromkeys(hosts, 0.0)
        self.cut: set[str] = set()
        self.dropped = 0
        self._dice = random.Random(7)
        self._devices: dict[str, int] = {}

    def command(self, host: str) -> list[str]:
        """Return the command that runs another one on a host."""
        return ["ip", "netns", "exec", self._namespace(host)]

    @contextmanager
    def up(self) -> Iterator[None]:
        """Make the namespaces and route between them for a ``with`` block."""
        thread = threading.Thread(target=self._route, name="router", daemon=True)
        try:
            for host, address in self.addresses.items():
                name = self._namespace(host)
                _ip("netns", "add", name)
                self._devices[host] = _open_device(name)
                _ip("-n", name, "address", "add", f"{address}/24", "dev", "tun0")
                _ip("-n", name, "link", "set", "lo", "up")
                _ip("-n", name, "link", "set", "tun0", "up")
            self._loop = asyncio.new_event_loop()
            thread.start()
            yield
        finally:
            if thread.is_alive():
                self._loop.call_soon_threadsafe(self._loop.stop)
                thread.join()
                self._loop.close()
            for device in self._devices.values():
                os.close(device)
            for host in self._devices:
                _ip("netns", "del", self._namespace(host))

    def _namespace(self, host: str) -> str:
        return f"agl-{os.getpid()}-{host}"

    def _route(self) -> None:
        asyncio.set_event_loop(self._loop)
        for host, device in self._devices.items():
            self._loop.add_reader(device, self._forward, host, device)
        self._loop.run_forever()

    def _forward(self, source: str, device: int) -> None:
        packet = os.read(device, _PACKET)
        target = ".".join(str(byte) for byte in packet[_DESTINATION])
        for host, address in self.addresses.items():
            if address == target:
                if {source, host} & self.cut or self._dice.random() < self.loss:
                    self.dropped += 1
                else:
                    self._loop.call_later(self.delay[host], self._deliver, host, packet)

    def _deliver(self, host: str, packet: bytes) -> None:
        with suppress(BlockingIOError):  # a full queue drops a packet, as a router does
            os.write(self._devices[host], packet)


def _open_device(namespace: str) -> int:
    """Make the TUN device ``tun0`` in a namespace; return its descriptor."""
    opened: list[int] = []
    failed: list[OSError] = []

    def enter_and_open() -> None:  # a namespace belongs to a thread
        try:
            with Path(f"/run/netns/{namespace}").open() as entry:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(entry.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            device = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22s", b"tun0", _IFF_TUN_NO_PI, b""))
            opened.append(device)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=enter_and_open)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return opened[0]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
