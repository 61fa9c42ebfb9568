"""Fills a Keras 3 model from a checkpoint of TensorFlow 1: python -m tf2dist.convert_checkpoint TF1_DIR OUT --model=...

Exit status: 0 done, 1 the checkpoint is damaged or OUT cannot be written, 2 the command was wrong or does not fit the
checkpoint. Nothing is written unless all is well.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from tf2dist.convert_checkpoint import ConvertError, find_checkpoint, model_argument, name_map
from tf2dist.errors import UsageError
from tf2dist.system import standard_output
from tf2dist.system.commands import Parser, as_called
from tf2dist.system.local_paths import check_local


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit status."""
    parser = Parser(prog=as_called("convert-checkpoint", "tf2dist.convert_checkpoint"), allow_abbrev=False)
    parser.add_argument("checkpoint", metavar="TF1_DIR", help="directory, or one checkpoint in it: DIR/model.ckpt-1000")
    parser.add_argument("out", metavar="OUT", help="NAME.keras for the model, NAME.weights.h5 for its weights")
    parser.add_argument(
        "--model", required=True, help="FILE.keras, MODULE:MODEL or MODULE:FUNCTION(ARGUMENTS), as "
        "'trainers.mnist_networks:sigmoid(0.001)'",
    )  # fmt: skip
    parser.add_argument("--map", help="JSON object of names: a variable's path in the model to its name in TF1_DIR")
    parser.add_argument("--averages", action="store_true", help="take the moving averages as the weights")
    parser.add_argument(
        "--lookup", choices=("mod", "div"), help="how rows of partitioned tables were looked up, where they were: "
        "partition_strategy of tf.nn.embedding_lookup, mod by default",
    )  # fmt: skip
    parser.add_argument("--dry_run", action="store_true", help="say what would be matched, write nothing")
    options = parser.parse_args(arguments)
    try:
        paths = {"TF1_DIR is ": options.checkpoint, "OUT is ": options.out, "--map=": options.map or ""}
        for name, path in paths.items():
            check_local(f"{name}{path}", path)
        prefix = find_checkpoint.checkpoint(options.checkpoint)
        _check_out(options.out)
        given = name_map.read_name_map(options.map) if options.map else {}
        if not options.model.endswith(".keras"):
            model_argument.parsed(options.model)
        elif not os.path.isfile(options.model):
            raise ConvertError(f"--model={options.model} is no file")
    except UsageError as error:
        return _say(error, 2)

    from tf2dist.runtime import tensorflow_import
    from tf2dist.system import atomic_files

    tensorflow_import.import_tensorflow()
    from tf2dist.convert_checkpoint.fill import fill
    from tf2dist.convert_checkpoint.read import Damaged

    try:
        model = model_argument.model(options.model)
        lines = fill(model, prefix, given, averages=options.averages, lookup=options.lookup)
        if not options.dry_run:
            atomic_files.save(model, options.out)
    except ConvertError as error:
        return _say(error, 1 if isinstance(error, Damaged) else 2)
    except OSError as error:
        return _say(f"{options.out} cannot be written: {error.strerror or error}", 1)
    print(f"{prefix} -> {'nothing is written' if options.dry_run else options.out}")
    for line in lines:
        print(f"  {line}")
    return 0


def _check_out(path: str) -> None:
    if not path.endswith((".keras", ".weights.h5")):
        raise ConvertError(f"OUT is {path}; a name that ends in .keras or .weights.h5 says what to write")
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        raise ConvertError(f"OUT is {path}, which is a directory; name a file")
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise ConvertError(f"OUT is {path}, and {folder} is no directory that can be written; name one that is")


def _say(error, status: int) -> int:
    for line in str(error).splitlines():
        print(f"tf2dist.convert_checkpoint: {line}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(standard_output.run(main))
