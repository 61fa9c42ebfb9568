"""What flags of trainers need: places that can be written for --report and --logdir, and packages."""

from __future__ import annotations

import os

from tf2dist.errors import UsageError
from tf2dist.system import optional_packages
from tf2dist.system.output_files import check_directory, check_writable
from trainers.common.shared_flags import SharedFlags


def check_shared_outputs(shared: SharedFlags) -> None:
    """Raises UsageError unless --report and --logdir can be written; leaves no trace."""
    if shared.report:
        check_writable(f"--report={shared.report}", shared.report, takes_special=True)
    if shared.logdir:
        # The directory is made when there is something to write, so that a wrong command leaves nothing behind.
        existing = os.path.realpath(shared.logdir)
        while not os.path.exists(existing):
            existing = os.path.dirname(existing)
        check_directory(f"--logdir={shared.logdir}", existing)


def check_installed(flag: str, module: str) -> None:
    """Raises UsageError unless the package that a flag needs is installed; imports nothing.

    Args:
      flag: the flag with its value, for the message.
      module: what the package is imported as.
    """
    if why := optional_packages.missing(module):
        raise UsageError(f"{flag} needs a package: {why}")
