"""Content encodings of OpenTelemetry's exporters."""

from __future__ import annotations

import gzip
import zlib

import pytest

from agl_store_http.server.otlp.decoding import OTLPError, decompress

BODY = b'{"resourceSpans":[]}' * 100


def test_deflate_is_read():
    assert decompress(zlib.compress(BODY), b"deflate", 10**6) == BODY


def test_another_encoding_is_named():
    with pytest.raises(OTLPError, match="'br' is not supported") as error:
        decompress(BODY, b"br", 10**6)
    assert error.value.status == 415


def test_a_corrupt_body_is_the_senders_error():
    with pytest.raises(OTLPError, match="the deflate body is corrupt") as error:
        decompress(b"nope", b"deflate", 10**6)
    assert error.value.status == 400


def test_a_body_of_several_members_is_not_read_in_part():
    with pytest.raises(OTLPError, match="send one member") as error:
        decompress(gzip.compress(BODY) * 2, b"gzip", 10**6)
    assert error.value.status == 400
