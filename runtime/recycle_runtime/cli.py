"""`recycle-run`: what a bundle holds for each worker. Standard library only."""

import argparse
import sys
from collections.abc import Sequence

from recycle_runtime.assembly import disassemble
from recycle_runtime.bundle import Bundle, BundleError
from recycle_runtime.standard_streams import abandon, open_standard_streams

DONE, INPUT_ERROR, USAGE = 0, 1, 2


class Refused(Exception):  # noqa: N818
    """What was asked for is not in the bundle."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is that of `recyclec`."""
    open_standard_streams()
    arguments = _parser().parse_args(argv)
    try:
        _streams(arguments)
        sys.stdout.flush()
    except BundleError as error:
        return _say(f"{arguments.bundle}: {error}", INPUT_ERROR)
    except Refused as error:
        return _say(str(error), USAGE)
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        abandon(sys.stdout)
        return 141
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        if error.filename:
            return _say(f"{error.filename}: {why}", INPUT_ERROR)
        # Only what we write to has no name.
        abandon(sys.stdout)
        return _say(f"cannot write stdout: {why}", INPUT_ERROR)
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="recycle-run", description="Reads plan bundles where plans are run."
    )
    parser.add_argument("--version", action="version", version=f"recycle-run {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    does = "list the plans of a bundle, the workers of a plan, or the instructions of a worker"
    streams = commands.add_parser("streams", help=does, description=f"{does.capitalize()}.")
    streams.add_argument("bundle", metavar="PLAN")
    streams.add_argument("--failures", type=int, metavar="N", help="the plan for this many failures")
    streams.add_argument("--worker", metavar="P:S", help="one worker, pipeline:stage")
    return parser


def _streams(arguments: argparse.Namespace) -> None:
    bundle = Bundle.read(arguments.bundle)
    if arguments.failures is None and arguments.worker is None:
        _list_plans(bundle)
        return
    plan = _plan_for(bundle, arguments.failures or 0)
    if arguments.worker is None:
        for worker in bundle.workers(plan):
            print(f"worker {_name(worker)}  {bundle.encoded(plan, worker)[1]} instructions")
        return
    worker = _worker(arguments.worker)
    if worker not in bundle.workers(plan):
        raise Refused(f"worker {arguments.worker} has no stream in this plan: it failed or does not exist")
    sys.stdout.write(disassemble(bundle.stream(plan, worker), worker))


def _list_plans(bundle: Bundle) -> None:
    for number, plan in enumerate(bundle.plans):
        failed = " ".join(map(_name, plan.failed)) or "nobody"
        print(
            f"plan {number}  {len(plan.failed)} failed ({failed}), {len(bundle.workers(number))} workers live"
        )


def _plan_for(bundle: Bundle, failures: int) -> int:
    counts = [len(plan.failed) for plan in bundle.plans]
    if failures not in counts:
        raise Refused(f"no plan for {failures} failures: the bundle plans for {', '.join(map(str, counts))}")
    return counts.index(failures)


def _worker(word: str) -> tuple[int, int]:
    pipeline, _, stage = word.partition(":")
    if not (pipeline.isascii() and pipeline.isdigit() and stage.isascii() and stage.isdigit()):
        raise Refused(f"--worker must be like 0:2 (pipeline:stage, from 0), got {word!r}")
    return int(pipeline), int(stage)


def _name(worker: tuple[int, int]) -> str:
    return f"{worker[0]}:{worker[1]}"


def _version() -> str:
    # The runtime ships in the same package as the compiler, whose version it shares, but must not import it.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("recyclec")
    except PackageNotFoundError:
        return "from a checkout that is not installed"


def _say(sentence: str, code: int) -> int:
    try:
        print(f"recycle-run: error: {sentence}", file=sys.stderr)
    except OSError:
        abandon(sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
