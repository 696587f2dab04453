"""``python -m agl_legacy script.py``: runs code of agent-lightning 0.3 on agl."""

import sys

from agl_legacy.script import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
