"""Ports out of range and addresses that are none, refused in one line before a server starts."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from agl_core.errors import ConfigError
from agl_proxy_direct import DirectProxy
from agl_proxy_direct.cli import proxy
from agl_store_http import LightningStoreClient
from agl_store_http.cli.store import store


@pytest.mark.parametrize("port", ["-1", "65536", "99999", "http"])
@pytest.mark.parametrize("command", [proxy, store])
def test_ports_of_commands(command: object, port: str):
    required = [] if command is store else ["--model", "q=http://h/v1", "--store", "http://h:1"]
    done = CliRunner().invoke(command, ["--port", port, *required])  # pyright: ignore[reportArgumentType]
    assert done.exit_code == 2
    assert "Invalid value for '--port'" in done.output


@pytest.mark.parametrize("address", ["http://h:99999", "http://h:0", "h:4747", "", "http://[::1"])
def test_addresses_of_store_servers(address: str):
    with pytest.raises(ConfigError, match="must be the URL of a server"):
        LightningStoreClient(address)


def test_ports_of_a_proxy():
    with pytest.raises(ConfigError, match="port"):
        DirectProxy(port=99999)
