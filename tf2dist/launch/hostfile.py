"""Reads the names of hosts: --hosts, a host file, and cluster.toml."""

from __future__ import annotations

import re
import tomllib
from typing import cast

from tf2dist.cluster.spec import JOBS
from tf2dist.errors import UsageError
from tf2dist.system.whole_numbers import whole_number

# No shell that ssh may start for a user's configuration (ProxyCommand, Match exec) finds a word of its own in a name.
_USER = r"""[^\s:@/\[\]'"`;&<>|(){}$\x00-\x1f]+@"""
_HOST = re.compile(rf"(?!-)(?:{_USER})?(?:[A-Za-z0-9_](?:[A-Za-z0-9_.\-]*)|\[[0-9A-Fa-f:.]+\])")


def parse_hosts(text: str) -> list[tuple[str, int]]:
    """Returns the name and slots of each host in "a,b:2".

    Raises:
      UsageError: the text is written differently.
    """
    return [_host_and_slots(part, f"--hosts={text}") for part in text.split(",")]


def read_hostfile(path: str) -> list[tuple[str, int]]:
    """Returns the name and slots of each host in a file with a line for each: "a", "b:2" or "b slots=2".

    Raises:
      UsageError: the file cannot be read, or is written differently.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--hostfile={path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    hosts: list[tuple[str, int]] = []
    for number, line in enumerate(lines, 1):
        where = f"--hostfile={path}, line {number}"
        if not line:
            continue
        if match := re.fullmatch(r"(\S+)\s+slots\s*=\s*(\S+)", line):
            line = f"{match[1]}:{match[2]}"
        hosts.append(_host_and_slots(line, where))
    if not hosts:
        raise UsageError(f"--hostfile={path} names no host; it has one a line")
    return hosts


def read_cluster_file(path: str) -> dict[str, list[tuple[str, int | None]]]:
    """Returns, by job, host and port (None if not given) of each task in TOML like `worker = ["a", "b:2222"]`.

    Raises:
      UsageError: the file cannot be read, or is written differently.
    """
    try:
        with open(path, "rb") as file:
            found: dict[str, object] = tomllib.load(file)
    except OSError as error:
        raise UsageError(f"--cluster={path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, no UTF-8, a number of very many digits
        raise UsageError(f"--cluster={path} is not TOML: {error}") from None
    jobs: dict[str, list[tuple[str, int | None]]] = {}
    for job in found:
        if job not in JOBS:
            raise UsageError(f"--cluster={path} has {job!r}; it has lists of hosts named {', '.join(JOBS)}")
    for job in JOBS:
        given = found.get(job, [])
        elements = cast("list[object]", given) if isinstance(given, list) else [given]
        hosts = [element for element in elements if isinstance(element, str)]
        if not isinstance(given, list) or len(hosts) != len(elements):
            raise UsageError(f'--cluster={path}: {job} is {given!r}; it is a list, as ["a", "b:2222"]')
        jobs[job] = [_host_and_number(text, f"--cluster={path}", "a port") for text in hosts]
    if not (jobs["chief"] or jobs["worker"]):
        raise UsageError(f"--cluster={path} names no worker; it needs at least one")
    if len(jobs["chief"]) > 1:
        raise UsageError(f"--cluster={path} names several chiefs; one is right")
    return jobs


def _host_and_slots(text: str, where: str) -> tuple[str, int]:
    name, slots = _host_and_number(text, where, "a number of slots")
    return name, 1 if slots is None else slots


def _host_and_number(text: str, where: str, what: str) -> tuple[str, int | None]:
    name, number = text.strip(), None
    if not name.endswith("]") and ":" in name:
        name, _, digits = name.rpartition(":")
        number = whole_number(digits)
        if not number or number > 65535:
            raise UsageError(f"{where} has {text!r}, and {digits!r} is not {what}")
    if not _HOST.fullmatch(name):
        raise UsageError(f"{where} has {text!r}, which names no host; hosts are written name or name:N")
    return name, number
