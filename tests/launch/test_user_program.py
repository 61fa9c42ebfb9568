"""A forked child behaves as the same program under `python` does."""

import re
import subprocess
import sys

from tests.conftest import every_third

PROGRAMS = {
    "success": "print('done')",
    "no output": "",
    "status": "import sys; sys.exit(3)",
    "status none": "import sys; sys.exit(None)",
    "status text": "import sys; sys.exit('because')",
    "status large": "import sys; sys.exit(257)",
    "exception": "def f():\n    return 1 / 0\nf()",
    "chained": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise ValueError('x') from error",
    "syntax": "def f(:\n    pass",
    "interrupt": "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(100)",
    "terminate": "import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(100)",
    "atexit": "import atexit, sys; atexit.register(print, 'bye'); atexit.register(print, 'good'); sys.exit(4)",
    "atexit fails": "import atexit, sys; atexit.register(lambda: 1 / 0)",
    "thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()",
    "hook": "import sys; sys.excepthook = lambda kind, *_: print(kind.__name__)\n1 / 0",
    "unflushed": "import sys; sys.stdout.write('no newline'); sys.stderr.write('none here')",
    "stdin": "import sys; print(repr(sys.stdin.read()))",
    "main": "import __main__, sys; x = 5; print(__main__.x, __name__, __spec__, __file__, sys.argv, sys.path[0])",
    "pickle": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))))",
    "spawn": "import multiprocessing as m\ndef f(x): return x * x\n"
    "if __name__ == '__main__':\n    print(m.get_context('spawn').Pool(2).map(f, range(4)))",
    "fork": "import multiprocessing as m\ndef f(x): return x * x\n"
    "if __name__ == '__main__':\n    with m.get_context('fork').Pool(2) as p: print(p.map(f, range(4)))",
    "signals": "import signal; print([signal.getsignal(s) for s in range(1, 32)])",
    "descriptors": "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))",
    "annotations": "def f(x: int): pass\nprint(f.__annotations__)",
    "encoding": "# -*- coding: latin-1 -*-\nprint(len('é'))",
    "threads": "import threading, os; print(threading.enumerate() == [threading.main_thread()])",
}


@every_third("name", PROGRAMS, quickly=6)
def test_a_script_runs_as_it_does_under_python(tmp_path, name):
    script = tmp_path / "program.py"
    script.write_text(PROGRAMS[name])
    assert launched(tmp_path, [str(script), "a", "--b"]) == plain(tmp_path, [str(script), "a", "--b"])


@every_third("name", ["success", "status text", "interrupt", "atexit", "pickle", "spawn"])
def test_a_module_runs_as_it_does_under_python(tmp_path, name):
    package = tmp_path / "package"
    package.mkdir()
    (package / "module.py").write_text(PROGRAMS[name])
    status, out, err = plain(tmp_path, ["-m", "package.module"])
    found = launched(tmp_path, ["package.module"])
    assert found[:2] == (status, out)
    assert found[2].splitlines()[-1:] == err.splitlines()[-1:]  # tracebacks of `python -m` also show runpy


def test_a_module_sees_itself_as_under_python(tmp_path):
    (tmp_path / "module.py").write_text("import sys; print(__name__, __spec__.name, __file__, sys.argv, sys.path[0])")
    assert launched(tmp_path, ["module", "x"]) == plain(tmp_path, ["-m", "module", "x"])


def test_a_package_with_a_main_runs(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "__main__.py").write_text("import sys; print(__package__, sys.argv)")
    assert launched(tmp_path, ["package"]) == plain(tmp_path, ["-m", "package"])


def test_processes_draw_different_random_numbers(run):
    status, out, _ = run(
        "import random, numpy\nprint(random.random(), numpy.random.rand())",
        "--workers=3",
        preload="random,numpy.random",
    )
    assert status == 0
    assert len({number for line in out.splitlines() for number in line.split()[2:]}) == 6


def test_atexit_functions_of_preloaded_modules_run_once_in_each_process(run, tmp_path):
    (tmp_path / "loud.py").write_text(
        "import atexit; atexit.register(print, 'bye'); print('noise of the import');"
        "import ctypes; ctypes.CDLL(None).puts(b'noise of C')"
    )
    status, out, err = run("", "--workers=2", preload="loud", env={"PYTHONPATH": str(tmp_path)})
    assert (status, sorted(out.splitlines()), err) == (0, ["[worker 0] bye", "[worker 1] bye"], "")


def plain(cwd, arguments):
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    # The launcher ends every line.
    out, err = ("".join(line + "\n" for line in text.splitlines()) for text in (done.stdout, done.stderr))
    return done.returncode, out, without_addresses(err)


def launched(cwd, program):
    """The status, stdout and stderr of a process as the launcher hears of them."""
    code = """
import sys
from tf2dist.launch.supervisor import Process, supervise
from tf2dist.launch.user_program import python_arguments
result = supervise([Process("program", python_arguments(sys.argv[1:]))], quiet_prefix_for="program")
open("status", "w").write(str(result.statuses["program"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, *program], cwd=cwd, capture_output=True, text=True, timeout=60, check=True
    )
    err = done.stderr.partition("launch: ")[0]  # what follows is the launcher's summary
    return int((cwd / "status").read_text()), done.stdout, without_addresses(err)


def without_addresses(text):
    return re.sub(r"0x[0-9a-f]+", "0x", text)
