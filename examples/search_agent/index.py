"""A full-text index of pages: SQLite's FTS5, ranked by BM25, in memory.

https://www.sqlite.org/fts5.html
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Iterable

from pages import Page

__all__ = ["Index"]


class Index:
    """Finds pages by their words; the title counts five times. Thread-safe.

    Args:
        pages: The pages.
    """

    def __init__(self, pages: Iterable[Page]) -> None:
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute("CREATE VIRTUAL TABLE pages USING fts5(title, text)")
        self._database.executemany("INSERT INTO pages VALUES (?, ?)", pages)

    def search(self, query: str, limit: int = 3) -> list[Page]:
        """Return the best pages for any of the words, the best first."""
        # Quoted, since a bare word such as NOT is an operator of FTS5.
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query))
        if not words:
            return []
        with self._lock:
            rows = self._database.execute(
                "SELECT title, text FROM pages WHERE pages MATCH ?"
                " ORDER BY bm25(pages, 5.0, 1.0) LIMIT ?",
                (words, limit),
            ).fetchall()
        return [Page(*row) for row in rows]

    def close(self) -> None:
        """Close the database."""
        self._database.close()
