"""Finds the files of the training part and the test part of a data set by their names."""

import fnmatch
import os
import re

from tf2dist.data.errors import DataError
from tf2dist.system import files as file_systems


def files(path: str) -> tuple[list[str], list[str]]:
    """Returns the training files and the test files that a path or a URL stands for; does not open them.

    A directory: `train.tfrecords` or else `train*.tfrecord*`, with all shards if they are numbered
    `-00000-of-00003`; and likewise `test` or else `validation`. A file: itself, and beside it the one whose name
    has `test` for `train`.

    Raises:
        DataError: a part or a shard is missing; says which names were tried.
    """
    if file_systems.is_directory(path):
        train, test = _part(path, "train"), _part(path, "test") or _part(path, "validation")
        if not train:
            raise DataError(f"{path} has no training part: no file is called train*.tfrecord*")
        if not test:
            raise DataError(f"{path} has no test part: no file is called test*.tfrecord* or validation*.tfrecord*")
        return train, test
    folder, name = os.path.split(path)
    before, found, after = name.rpartition("train")
    if not found:
        raise DataError(f"{path} has no `train` in its name, so its test part cannot be found; name their directory")
    test = os.path.join(folder, f"{before}test{after}")
    if not file_systems.exists(test):
        raise DataError(f"{path} has no test part: there is no {test}")
    return [path], [test]


def _part(folder: str, name: str) -> list[str]:
    whole = os.path.join(folder, f"{name}.tfrecords")
    if file_systems.exists(whole):
        return [whole]
    names = fnmatch.filter(file_systems.list_names(folder), f"{name}*.tfrecord*")
    found = [os.path.join(folder, each) for each in names]
    for path in found:
        if numbered := re.search(r"-(\d{5})-of-(\d{5})", path):
            for shard in range(int(numbered[2])):
                other = f"{path[: numbered.start(1)]}{shard:05d}{path[numbered.end(1) :]}"
                if other not in found:
                    raise DataError(f"{other} is missing beside {path}")
    return found
