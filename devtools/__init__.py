"""What ``dev.py`` is made of: environments, packages, distributions and checks of them."""

import sys

# Here, because the modules of this package already need 3.11, and `python3` may be any.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(f"agl needs Python 3.11 or newer, this is {sys.version.split()[0]}")
