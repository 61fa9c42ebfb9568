"""python -m tf2dist COMMAND [arguments]"""

import sys

from tf2dist.command_line import run

if __name__ == "__main__":
    sys.exit(run())
