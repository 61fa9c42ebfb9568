"""Lets a board of Conway's Game of Life live: python -m trainers.life --pattern=gosper --size=100x100 --gif=gun.gif."""

import contextlib
import time

from absl import flags

from tf2dist.data.errors import DataError
from tf2dist.errors import UsageError
from tf2dist.system import files, output_files
from trainers.common import flag_requirements, main
from trainers.life import (
    animation,
    classic_patterns,
    display,
    engines,
    game_flags,
    packed_board,
    pattern_files,
    picture,
    population_curve,
    saved_run,
)

_ENGINE = flags.DEFINE_enum("engine", "packed", list(engines.ENGINES), "What computes the generations.")
_SIZE = flags.DEFINE_string(
    "size", None, "ROWSxCOLUMNS of the board; the pattern's, or 50x50 and more if it needs more."
)
_PATTERN = flags.DEFINE_string(
    "pattern", "random", f"random, a file (RLE, Life 1.06, plaintext), or one of {', '.join(classic_patterns.NAMES)}."
)
_AT = flags.DEFINE_string("at", None, "ROW,COLUMN of the pattern's upper left corner; in the middle if not given.")
_RULE = flags.DEFINE_string(
    "rule", None, "As B3/S23: born with 3 live neighbours, survives with 2 or 3; the pattern's."
)
_EDGES = flags.DEFINE_enum(
    "edges", None, list(pattern_files.EDGES), "What is beyond the edges; the pattern's, or a torus."
)
_GENERATIONS = flags.DEFINE_integer("generations", 1000, "How many in all.", lower_bound=0, upper_bound=2**60)
_STOP_ON_CYCLE = flags.DEFINE_boolean("stop_on_cycle", False, "Stop when a board comes back, and say its period.")
_OUT = flags.DEFINE_string("out", None, f"File for the last generation: {', '.join(pattern_files.SUFFIXES)}.")
_GIF = flags.DEFINE_string("gif", None, "File for an animation.")
_MP4 = flags.DEFINE_string("mp4", None, "File for an animation; needs ffmpeg.")
_CURVE = flags.DEFINE_string("curve", None, "File for the population of every generation: .png or .csv.")
_VIEW = flags.DEFINE_enum(
    "view", "auto", ["auto", "window", "terminal", "none"], "Where to watch; auto: a window if there is a display."
)
_EVERY = flags.DEFINE_integer("every", 1, "Generations from one frame to the next.", lower_bound=1)
_FPS = flags.DEFINE_float("fps", 5.0, "Frames a second.", lower_bound=0.01, upper_bound=100.0)
_COLOURS = flags.DEFINE_string("colours", "black,white", "Of living and of dead cells: names or #rrggbb.")

# Cell updates between two checks of the clock, about a second's work; the same in all processes of a job.
_CELLS_PER_CHUNK = {"numpy_function": 2e7, "conv": 1e8, "packed": 2e10}
_CHUNKS_PER_SAVE = 60
_LINE_SECONDS = 5.0  # between two lines of progress


def prepare(shared):
    """Checks the flags, the pattern and the saved run in --logdir, before TensorFlow is imported."""
    if shared.strategy in ("central", "ps"):
        raise UsageError(f"--strategy={shared.strategy} has no place for a board; one, mirrored and multiworker have")
    if shared.mixed_precision:
        raise UsageError("--mixed_precision is for floating-point numbers, and a board has none")
    if shared.xla and _ENGINE.value != "packed":
        raise UsageError(f"--xla does not compile --engine={_ENGINE.value}; packed is compiled by XLA always")
    chosen = _game()
    engines.check(_ENGINE.value, chosen.rows, chosen.columns, chosen.edges, shared.replicas_in_sync() or 1)
    if shared.logdir and (before := saved_run.read(shared.logdir)):
        _check_goes_on(before, chosen, shared)
    _check_outputs(shared, picture.scale(chosen.rows, chosen.columns))


def train(run, prepared):
    """Computes the generations; shows and writes what the flags say."""
    from trainers.life.simulation import Simulation, resume

    chosen, logdir = _game(), run.shared.logdir
    engine = engines.make_engine(_ENGINE.value, chosen.rule, chosen.rows, chosen.columns, chosen.edges, run.strategy)
    before = saved_run.read(logdir) if logdir else None
    _check_same_generation(run, before.generation if before else 0)
    wanted = {"cycle": _STOP_ON_CYCLE.value, "curve": bool(_CURVE.value)}
    life = resume(engine, before, **wanted) if before else Simulation(engine, chosen.board(run.shared.seed), **wanted)
    run.say(f"{_key(chosen)}, strategy {run.shared.strategy} ({run.shared.layout})")
    if before:
        run.say(f"going on from generation {life.began:,} in {logdir}")
        if life.finder and not before.memory:
            run.say(f"a cycle is looked for from generation {life.began:,} on; the run before did not look for one")
        if life.populations and before.populations is None:
            run.say(f"populations are kept from generation {life.began:,} on; the run before did not keep them")

    beginning = chosen.beginning(run.shared.seed) if before is None else before.beginning
    with contextlib.ExitStack() as until_done:
        frames = _frames(run, chosen, until_done)
        if frames:
            frames(life.board(), life.generation)
        chunk, chunks = min(2**20, max(1, int(_CELLS_PER_CHUNK[_ENGINE.value] / chosen.cells))), 0
        shown_at = time.monotonic()
        while life.generation < _GENERATIONS.value and not life.cycle:
            to_frame = _EVERY.value - life.generation % _EVERY.value if frames else chunk
            life.advance(min(chunk, to_frame, _GENERATIONS.value - life.generation))
            chunks += 1
            if frames and (life.generation % _EVERY.value == 0 or life.cycle):
                frames(life.board(), life.generation)
            if logdir and chunks % _CHUNKS_PER_SAVE == 0:
                life.save(logdir, _key(chosen), beginning, writes=run.leads)
            if time.monotonic() - shown_at >= _LINE_SECONDS:
                shown_at = time.monotonic()
                rate = life.generations_per_second()
                left = (_GENERATIONS.value - life.generation) / rate
                run.say(f"generation {life.generation:,}  {rate * chosen.cells:.3g} cells/s  {left:,.0f} s left")
    if logdir and life.generation > life.began:
        life.save(logdir, _key(chosen), beginning, writes=run.leads)
    board, rate = life.board(), life.generations_per_second() * chosen.cells
    if _OUT.value and run.leads:
        chosen.write(_OUT.value, board)
    if _CURVE.value and life.populations and run.leads:
        population_curve.write(_CURVE.value, life.populations_from, life.populations)

    population = packed_board.population(board)
    run.say(f"generation {life.generation:,}: {population:,} cells live; {rate:.3g} cells/s")
    if life.cycle:
        run.say(f"the board of generation {life.cycle.first:,} comes back, with period {life.cycle.period:,}")
    return {
        "engine": _ENGINE.value,
        "rows": chosen.rows,
        "columns": chosen.columns,
        "edges": chosen.edges,
        "rule": str(chosen.rule),
        "generations": life.generation,
        "population": population,
        "period": life.cycle.period if life.cycle else None,
        "cycle_from": life.cycle.first if life.cycle else None,
        "cells_per_second": rate,
        "seconds": life.seconds,
    }


def _game() -> game_flags.Game:
    return game_flags.choose(_PATTERN.value, _SIZE.value, _AT.value, _RULE.value, _EDGES.value)


def _key(chosen: game_flags.Game) -> str:
    """Returns what must be the same for a saved run to continue, in words."""
    return f"{chosen}, engine {_ENGINE.value}"


def _check_goes_on(before: saved_run.SavedRun, chosen: game_flags.Game, shared) -> None:
    """Raises UsageError if this command does not go on with a saved run, or would lose what it wrote."""
    if before.key != _key(chosen):
        raise UsageError(f"--logdir={shared.logdir} holds a run of {before.key}, and this is one of {_key(chosen)}")
    beginning = chosen.beginning(shared.seed)
    if before.beginning not in ("", beginning):  # runs of older programs do not say
        raise UsageError(
            f"--logdir={shared.logdir} holds a run that began with {before.beginning}, and this one begins with "
            f"{beginning}; give the same --pattern, --at and --seed, or another directory"
        )
    if _CURVE.value and before.populations is None and files.exists(_CURVE.value):
        raise UsageError(
            f"--curve={_CURVE.value} is there and would get the generations from {before.generation:,} on only, since "
            f"the run in {shared.logdir} was saved without --curve; name another file"
        )


def _check_outputs(shared, scale: picture.Scale) -> None:
    if _OUT.value and not _OUT.value.endswith(pattern_files.SUFFIXES):
        raise UsageError(f"--out={_OUT.value} must end in {', '.join(pattern_files.SUFFIXES)}")
    if _CURVE.value and not _CURVE.value.endswith((".png", ".csv")):
        raise UsageError(f"--curve={_CURVE.value} must end in .png or .csv")
    needs = [(_GIF.value, "--gif", "PIL"), (_COLOURS.value, "--colours", "PIL")]
    needs += [(_CURVE.value and _CURVE.value.endswith(".png"), "--curve", "matplotlib")]
    needs += [(_ENGINE.value == "numpy_function", "--engine=numpy_function", "scipy")]
    for wanted, flag, module in needs:
        if wanted:
            flag_requirements.check_installed(flag, module)
    picture.palette(_COLOURS.value)
    if _GIF.value:
        animation.check_gif(f"--gif={_GIF.value}", _GENERATIONS.value, _EVERY.value, scale)
    if _MP4.value:
        animation.check_mp4(f"--mp4={_MP4.value}")
    if _VIEW.value == "window" and not display.has_display():
        raise UsageError("--view=window needs a display, and there is none; --view=terminal and --gif=FILE need none")
    for flag in (_OUT, _GIF, _MP4, _CURVE):
        if flag.value and shared.leads:
            output_files.check_writable(f"--{flag.name}={flag.value}", flag.value)


def _check_same_generation(run, generation: int) -> None:
    """Raises DataError when the processes of a job would continue from different generations."""
    if run.shared.logdir and run.shared.strategy == "multiworker":
        import tensorflow as tf

        mine = run.strategy.run(tf.function(lambda: tf.constant(generation, tf.int64)))
        if int(run.strategy.reduce("SUM", mine, axis=None)) != run.strategy.num_replicas_in_sync * generation:
            raise DataError(f"--logdir={run.shared.logdir} is not the same for all processes; name one that they share")


def _view(shared) -> str:
    """Returns where to watch: window, terminal or none."""
    if _VIEW.value != "auto":
        return _VIEW.value
    return "window" if shared.strategy != "multiworker" and display.has_display() else "none"


def _frames(run, chosen: game_flags.Game, until_done: contextlib.ExitStack) -> display.Show | None:
    """Returns a function that shows and records a frame, in the process that leads; None if nobody looks.

    The processes of a job gather boards together, so all of them get a function, or none does. The files are complete
    when `until_done` is closed.
    """
    scale, palette = picture.scale(chosen.rows, chosen.columns), picture.palette(_COLOURS.value)
    view, shows = _view(run.shared), []
    if run.leads and view == "window":
        try:
            shows.append(display.window(scale, palette, _FPS.value))
        except RuntimeError as error:
            if _VIEW.value == "window":
                raise UsageError(f"--view=window: {error}") from None
            run.say(f"{error}; --gif=FILE makes an animation")
            view = "none"  # this process is the only one
    if run.leads and view == "terminal":
        shows.append(display.text(chosen.columns, _FPS.value))
    for path, record in ((_GIF.value, animation.gif), (_MP4.value, animation.mp4)):
        if run.leads and path:
            append = until_done.enter_context(record(path, scale, palette, _FPS.value))
            shows.append(lambda board, generation, append=append: append(picture.draw(board, scale)))
    if view == "none" and not (_GIF.value or _MP4.value):
        return None

    def frame(board, generation: int) -> None:
        for show in shows:
            show(board, generation)

    return frame


if __name__ == "__main__":
    main.run(train, prepare)
