"""Tests of the doctor's check of the store server's port."""

from __future__ import annotations

import json
import socket

from agl_cli_kit import main
from agl_store_http.check import check_port


def test_a_port_in_use_and_the_same_port_free_again():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (finding,) = check_port(port)
        assert finding.severity == "info"
        assert f"port {port} is taken" in finding.what
    (finding,) = check_port(port)
    assert finding.severity == "ok"


def test_the_doctor_shows_it(capsys):
    main(["doctor", "--json", "--no-plugin-check"])
    found = [finding["check"] for finding in json.loads(capsys.readouterr().out)]
    assert found.count("port") == 1
