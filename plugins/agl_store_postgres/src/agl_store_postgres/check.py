"""The check of ``agl doctor --store``: the server's version and what durability depends on."""

from __future__ import annotations

from agl_core.doctor import Finding
from agl_core.store import LightningStore
from agl_store_postgres.schema import OLDEST_SERVER

__all__ = ["check_server"]

_OLDEST = OLDEST_SERVER // 10000
_UNSAFE = {
    "fsync": "power loss can damage the database",
    "full_page_writes": "power loss can damage the database",
    "synchronous_commit": "a crash of the server can take acknowledged writes",
}


async def check_server(store: LightningStore, **options: object) -> list[Finding]:
    """Check the server of a PostgreSQL store; return nothing for other stores."""
    del options
    from agl_store_postgres.store import PostgresLightningStore

    if not isinstance(store, PostgresLightningStore):
        return []
    settings = await store.server_settings()
    version = settings["server_version"]
    findings: list[Finding] = []
    if int(version.split(".")[0].split()[0].rstrip("abcdefghijklmnopqrstuvwxyz")) < _OLDEST:
        findings.append(
            Finding(
                "error",
                "postgres",
                f"the server is PostgreSQL {version}, which the store does not work with",
                f"upgrade it to {_OLDEST} or later",
            )
        )
    for name, danger in _UNSAFE.items():
        if settings[name] == "off":
            findings.append(
                Finding(
                    "warning",
                    "postgres",
                    f"the server runs with {name} = off: {danger}",
                    f"set {name} = on in postgresql.conf and reload the server",
                )
            )
    return findings or [Finding("ok", "postgres", f"PostgreSQL {version} at {store.endpoint}")]
