"""Runs the user's script in a worker process, as `python SCRIPT ARGS` would, and says what became of it."""

import atexit
import os
import sys
import traceback
import types
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TypeVar

import torch

from recycle_runtime.data.private_random import preserved, seed_process
from recycle_runtime.execution.hooks import Hooks
from recycle_runtime.plan.worker_ids import Worker, worker_text
from recycle_runtime.program.errors import ProgramError, line_of, place, syntax_sentence
from recycle_runtime.program.user_file import note_start
from recycle_runtime.protocol.heartbeat_board import Board
from recycle_runtime.trainer import context
from recycle_runtime.worker.lifecycle import Life
from recycle_runtime.worker.options import ProcessOptions
from recycle_runtime.worker.requests import Requests

_RUNTIME = str(Path(__file__).resolve().parents[1])
Result = TypeVar("Result")


def work_with_script(
    options: ProcessOptions,
    script: Sequence[str],
    worker: Worker,
    tp_rank: int,
    line: int,
    board: Board,
    hooks: Hooks | None = None,
) -> int:
    """The life of a worker process that runs a script with its arguments; the exit status."""
    requests = Requests()
    life = Life(options, worker, tp_rank, line, board, hooks, requests)
    inside = context.Context(life, requests, Path(script[0]))
    context.enter(inside)
    # Every worker builds the same model, also where the script does not say with which random numbers.
    torch.manual_seed(options.seed)
    seed_process(options.seed)
    os.register_at_fork(after_in_child=requests.leave_to_parent)
    # What the agent has registered is not this process's to end.
    atexit._clear()  # pyright: ignore[reportPrivateUsage]
    path, end = Path(script[0]), atexit._run_exitfuncs  # pyright: ignore[reportPrivateUsage]
    note_start(path)
    why = outcome(path, worker, lambda: as_process(path, lambda: _execute(script), end))
    end()
    if why is None and not inside.has_trainer:
        why = f"{script[0]}: it ended without making a recycle.Trainer, so there is nothing to train"
    if why is not None:
        return life.fail(why)
    requests.end()
    return life.wait()


@contextmanager
def preserved_random() -> Generator[None]:
    """Keep draws of training in here from changing the random state of the script."""
    with preserved():
        yield


def outcome(path: Path, worker: Worker, run: Callable[[], None]) -> str | None:
    """Run the user's code in this file; what has kept it from its end."""
    try:
        run()
    except SystemExit as error:
        if error.code in (None, 0):
            return None
        return f"{path}: the script of worker {worker_text(worker)} exited with {error.code!r}"
    except ProgramError as error:
        return _sentence(path, error)
    except SyntaxError as error:
        return syntax_sentence(path, error)
    except KeyboardInterrupt as error:
        where = place(path, line_of(path, error))
        return f"{where}: the script of worker {worker_text(worker)} was interrupted (KeyboardInterrupt)"
    except BaseException as error:
        where = place(path, line_of(path, error))
        head = f"{where}: the script of worker {worker_text(worker)} raised {type(error).__name__}"
        return f"{head}\n{_user_traceback(error)}"
    return None


def _sentence(path: Path, error: ProgramError) -> str:
    hint = f"; {error.hint}" if error.hint else ""
    return f"{place(path, line_of(path, error))}: {str(error).removeprefix(f'{path}: ')}{hint}"


def as_process(path: Path, run: Callable[[], Result], end: Callable[[], object] = lambda: None) -> Result:
    """Run the user's code in this file; a process that it has forked ends where that code does.

    It is no worker: it has neither the threads of one nor a right to its connections. `end` is called there.
    """
    worker = os.getpid()
    try:
        result = run()
    except BaseException as error:
        if os.getpid() != worker:
            _exit_forked(path, error, end)
        raise
    if os.getpid() != worker:
        _exit_forked(path, None, end)
    return result


def _exit_forked(path: Path, error: BaseException | None, end: Callable[[], object]) -> NoReturn:
    """As a process of Python ends, with what it says of an error."""
    status = 0 if error is None else 1
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    elif error is not None:
        is_ours = isinstance(error, ProgramError)
        print(_sentence(path, error) if is_ours else _user_traceback(error), file=sys.stderr)
    try:
        end()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status & 0xFF)


def _execute(script: Sequence[str]) -> None:
    path = Path(script[0]).absolute()
    module = types.ModuleType("__main__")
    module.__file__ = str(path)
    code = compile(path.read_bytes(), str(path), "exec")
    sys.modules["__main__"] = module
    sys.argv = list(script)
    sys.path.insert(0, str(path.parent))
    exec(code, module.__dict__)


def _user_traceback(error: BaseException) -> str:
    """As Python prints it, without the frames of this package."""
    told = traceback.TracebackException.from_exception(error)
    seen: traceback.TracebackException | None = told
    while seen is not None:
        kept = [frame for frame in seen.stack if not frame.filename.startswith(_RUNTIME)]
        seen.stack = traceback.StackSummary.from_list(kept or seen.stack)
        seen = seen.__cause__ or seen.__context__
    return "".join(told.format()).rstrip()
