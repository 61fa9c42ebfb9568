"""Which variable of a checkpoint belongs to which of a model: by a map, else by name, else by shape."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from tf2dist.convert_checkpoint import ConvertError

Shape = tuple[int, ...]
# What optimizers of TensorFlow 1 called the variables that they kept for each variable `v`: `v/Adam` and so on.
SLOTS = ("Momentum", "Adam", "Adam_1", "Adagrad", "RMSProp", "RMSProp_1", "RMSProp_2", "Adadelta", "Adadelta_1",
         "Ftrl", "Ftrl_1", "ExponentialMovingAverage")  # fmt: skip
_SAME = {"weights": "kernel", "weight": "kernel", "w": "kernel", "biases": "bias", "b": "bias"}
_SAME |= {"embedding": "embeddings", "embedding_weights": "embeddings"}


@dataclass(frozen=True)
class Match:
    """The checkpoint's variable for one of the model's, and why: "map", "name" or "shape"."""

    name: str
    why: str


def match(wanted: Mapping[str, Shape], found: Mapping[str, Shape], given: Mapping[str, str]) -> dict[str, Match]:
    """A variable of the checkpoint for each of the model.

    Args:
      wanted: shapes of the model's variables by path.
      found: shapes of the checkpoint's variables by name, without those that optimizers keep.
      given: names by path, which hold before anything else.

    Raises:
      ConvertError: some have none, or one of another shape, or more than one might be meant.
    """
    wrong, matches = [], {}
    for path, name in given.items():
        if path not in wanted:
            wrong.append(f"the name map's {path} is no variable of the model{_nearest(path, wanted)}")
        elif name not in found:
            wrong.append(f"the name map's {name}, for {path}, is not in the checkpoint{_nearest(name, found)}")
        else:
            matches[path] = Match(name, "map")
    known = set(given)
    used = {m.name for m in matches.values()}
    # The shape is looked at below: a variable of this name and another shape is not to be passed over.
    matches |= _by_name([path for path in wanted if path not in known], [name for name in found if name not in used])
    for path, pair in matches.items():
        if found[pair.name] != wanted[path]:
            wrong.append(
                f"{path} has shape {list(wanted[path])} in the model, and {pair.name}, which is meant by {pair.why}, "
                f"{list(found[pair.name])} in the checkpoint"
            )
    left = [path for path in wanted if path not in matches and path not in known]
    used = {m.name for m in matches.values()}
    free = [name for name in found if name not in used]
    for shape in dict.fromkeys(wanted[path] for path in left):
        paths, names = ([n for n in where if shapes[n] == shape] for where, shapes in ((left, wanted), (free, found)))
        if len(paths) == len(names) == 1:
            matches[paths[0]] = Match(names[0], "shape")
        elif names:
            wrong.append(
                f"{', '.join(paths)}: {', '.join(names)} in the checkpoint {'has' if len(names) == 1 else 'have'} the "
                f"shape {list(shape)}; say in a name map which is meant"
            )
        else:
            wrong += [
                f"{path} has shape {list(shape)}, which no variable that is left in the checkpoint has"
                f"{_nearest(path, free, shapes=found)}"
                for path in paths
            ]
    if wrong:
        raise ConvertError(*wrong)
    return {path: matches[path] for path in wanted}


def is_slot(name: str, names) -> bool:
    """Is this a variable that an optimizer or an average keeps for another one?"""
    owner, _, last = name.rpartition("/")
    return last in SLOTS and owner in names


def _by_name(paths: list[str], names: list[str]) -> dict[str, Match]:
    """The matches by name, the closest first: none where a path has two that are as close, or a name fits two paths."""
    matches: dict[str, Match] = {}
    for levels in ((0,), (1,), (2, 3)):
        fits = {path: [name for name in names if _distance(path, name) in levels] for path in paths}
        for path, fitting in fits.items():
            closest = next(filter(None, ([n for n in fitting if _distance(path, n) == at] for at in levels)), [])
            if len(closest) == 1 and sum(closest[0] in others for others in fits.values()) == 1:
                matches[path] = Match(closest[0], "name")
        # Where too many are close, none that is further off is meant.
        paths = [path for path in paths if not fits[path]]
        used = {match.name for match in matches.values()}
        names = [name for name in names if name not in used]
    return matches


def _distance(path: str, name: str) -> int | None:
    """How far the two are from being the same place: 0 not at all, 3 the furthest; None if they are different places.

    Models of Keras may have their own name before all others, or programs of TensorFlow 1 a scope.
    """
    if path == name:
        return 0
    ours, theirs = _plain(path), _plain(name)
    if ours == theirs:
        return 1
    if path.endswith(f"/{name}") and ours[1:] == theirs:
        return 2
    return 3 if ours[1:] == theirs or ours == theirs[1:] else None


def _plain(name: str) -> list[str]:
    parts = [part.lower() for part in name.split("/")]
    return [*parts[:-1], _SAME.get(parts[-1], parts[-1])]


def _nearest(name: str, names, shapes=None) -> str:
    said = {n: f"{n} {list(shapes[n])}" if shapes else n for n in names}
    best = difflib.get_close_matches(name, list(names), 1, 0.4)
    if best:
        return f"; the nearest name is {said[best[0]]}"
    return f"; there are {', '.join(said.values())}" if said else "; nothing is left"
