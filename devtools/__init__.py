"""Implements ``dev.py``: environments, packages, distributions, and checks of them."""

import sys

# Checked here, because the modules of this package already need 3.11 and `python3` may be older.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(f"agl needs Python 3.11 or newer, this is {sys.version.split()[0]}")
