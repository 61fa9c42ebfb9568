"""python -m launch NAME [options] -- MODULE_OR_SCRIPT [args]"""

import sys

from tf2dist.launch.command_line import run

if __name__ == "__main__":
    sys.exit(run())
