"""``python -m agl_core.cli`` is ``agl``."""

import sys

from agl_core.cli import main

sys.exit(main())
