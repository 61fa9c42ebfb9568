"""Hosts, as the command line and files name them."""

from __future__ import annotations

import re
import tomllib

from launch import UsageError
from tf2dist.cluster import JOBS

_HOST = re.compile(r"(?!-)(?:[^\s:@/\[\]]+@)?(?:[A-Za-z0-9_](?:[A-Za-z0-9_.\-]*)|\[[0-9A-Fa-f:.]+\])")


def listed(text: str) -> list[tuple[str, int]]:
    """Name and slots of each host in "a,b:2".

    Raises:
      UsageError: it says something else.
    """
    return [_slots(part, f"--hosts={text}") for part in text.split(",")]


def from_file(path: str) -> list[tuple[str, int]]:
    """Name and slots of each host in a file with a line for each: "a", "b:2" or "b slots=2".

    Raises:
      UsageError: the file cannot be read, or says something else.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--hostfile={path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    hosts = []
    for number, line in enumerate(lines, 1):
        where = f"--hostfile={path}, line {number}"
        if not line:
            continue
        if match := re.fullmatch(r"(\S+)\s+slots\s*=\s*(\S+)", line):
            line = f"{match[1]}:{match[2]}"
        hosts.append(_slots(line, where))
    if not hosts:
        raise UsageError(f"--hostfile={path} names no host; it has one a line")
    return hosts


def by_job(path: str) -> dict[str, list[tuple[str, int | None]]]:
    """Host and port, if that is said, of each task in `worker = ["a", "b:2222"]` and the like, by job in TOML.

    Raises:
      UsageError: the file cannot be read, or says something else.
    """
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        raise UsageError(f"--cluster={path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--cluster={path} is not TOML: {error}") from None
    jobs = {}
    for job in found:
        if job not in JOBS:
            raise UsageError(f"--cluster={path} has {job!r}; it has lists of hosts named {', '.join(JOBS)}")
    for job in JOBS:
        hosts = found.get(job, [])
        if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
            raise UsageError(f'--cluster={path}: {job} is {hosts!r}; it is a list, as ["a", "b:2222"]')
        jobs[job] = [_split(text, f"--cluster={path}", "a port") for text in hosts]
    if not (jobs["chief"] or jobs["worker"]):
        raise UsageError(f"--cluster={path} names no worker; it needs at least one")
    if len(jobs["chief"]) > 1:
        raise UsageError(f"--cluster={path} names several chiefs; one is right")
    return jobs


def _slots(text: str, where: str) -> tuple[str, int]:
    name, slots = _split(text, where, "a number of slots")
    return name, 1 if slots is None else slots


def _split(text: str, where: str, what: str) -> tuple[str, int | None]:
    name, number = text.strip(), None
    if not name.endswith("]") and ":" in name:
        name, _, digits = name.rpartition(":")
        number = int(digits) if digits.isdecimal() else 0
        if not 0 < number < 65536:
            raise UsageError(f"{where} has {text!r}, and {digits!r} is not {what}")
    if not _HOST.fullmatch(name):
        raise UsageError(f"{where} has {text!r}, which names no host; hosts are written name or name:N")
    return name, number
