"""``python -m agl_cli_kit`` is ``agl``."""

import sys

from agl_cli_kit import main

sys.exit(main())
