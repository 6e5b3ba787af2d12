"""`recycle-run profile`: measure what the stages of a program cost on this machine."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from recycle_runtime.cli.errors import DONE, INPUT_ERROR

DOES = "measure what the stages of a program cost on this device, for `profile from` in a job"


def add_parser(subparsers: Any) -> None:
    """Declare the command; `run` is in its defaults."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "profile", help=DOES, description=f"{DOES[0].upper()}{DOES[1:]}."
    )
    parser.add_argument("--program", required=True, metavar="FILE", help="the Python file to train")
    parser.add_argument("--stages", required=True, type=_count, metavar="S", help="stages of the pipeline")
    parser.add_argument("-o", "--output", required=True, metavar="PROFILE.json", help="where to write it")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default: cpu")
    parser.add_argument(
        "--repeat", type=_count, default=20, metavar="N", help="measurements of each time (default: 20)"
    )
    parser.add_argument("--seed", type=_seed, default=0, metavar="N", help="of the program (default: 0)")
    parser.add_argument(
        "--pipelines",
        type=_count,
        default=1,
        metavar="D",
        help="workers that reduce a stage's gradients, over loopback (default: 1, nothing to reduce)",
    )
    parser.add_argument(
        "--threads",
        type=_count,
        default=1,
        metavar="N",
        help="threads of torch on the CPU (default: 1, as a worker has)",
    )
    parser.add_argument(
        "--busy-workers",
        type=_seed,
        default=0,
        metavar="N",
        help="so many other workers share the device and are kept busy meanwhile (default: 0)",
    )
    parser.add_argument("--quiet", action="store_true", help="no table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure and write; 1 if the program or the file is at fault."""
    from recycle_runtime.profiler import Options, profile, table
    from recycle_runtime.profiler.crowd import crowd
    from recycle_runtime.profiler.report import UNSTEADY
    from recycle_runtime.program.errors import ProgramError
    from recycle_runtime.program.loading import load_program

    output = Path(arguments.output)
    quiet: bool = arguments.quiet
    options = Options(
        stages=arguments.stages,
        device=arguments.device,
        repeat=arguments.repeat,
        seed=arguments.seed,
        pipelines=arguments.pipelines,
        threads=arguments.threads,
    )

    def progress(stage: int) -> None:
        if not quiet:
            _say(f"measuring stage {stage} of {options.stages}")

    if why := _unwritable(output):
        return _fail(f"cannot write {output}: {why}")
    others = (arguments.program, options.stages, options.device, options.seed, arguments.busy_workers)
    try:
        program = load_program(arguments.program)
        with crowd(*others):
            measured = profile(program, options, progress)
    except ProgramError as error:
        return _fail(str(error), error.hint)
    try:
        _write_whole(output, measured.to_text())
    except OSError as error:
        return _fail(f"cannot write {output}: {(error.strerror or str(error)).lower()}")
    if quiet:
        return DONE
    _say(table(measured))
    if unsteady := measured.unsteady():
        stages = ", ".join(map(str, unsteady))
        _say(
            f"note: half of the times differ by more than {UNSTEADY:.0%} of the median at stage {stages}: "
            "measure on an idle machine, or with a larger --repeat"
        )
    _say(f'wrote {output}: use it with `profile from "{output.name}"`')
    return DONE


def _unwritable(path: Path) -> str:
    """Said before minutes of work instead of after."""
    if path.is_dir():
        return "it is a folder"
    if not path.absolute().parent.is_dir():
        return f"there is no folder {path.parent}"
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        return "it may not be written"
    return ""


def _write_whole(path: Path, text: str) -> None:
    """Aside, then in place: a reader sees the old file or the new one; a pipe is written to."""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _count(text: str) -> int:
    return _whole(text, 1)


def _seed(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit() and least <= int(text) < 1 << 31):
        raise argparse.ArgumentTypeError(f"must be a whole number from {least}, got {text!r}")
    return int(text)


def _fail(sentence: str, hint: str = "") -> int:
    _say(f"recycle-run: error: {sentence}")
    if hint:
        _say(f"hint: {hint}")
    return INPUT_ERROR


def _say(words: str) -> None:
    print(words, file=sys.stderr)
