"""`recyclec play`: a page on this machine with the numbers of a job as sliders."""

from argparse import Namespace

from recycle_compiler.cli.options.planning import load_for, start_of
from recycle_compiler.cli.values import count
from recycle_compiler.frontend import parse_job_text
from recycle_compiler.playground.server import LOOPBACK, Playground
from recycle_compiler.playground.settings import MOST, MOST_OPS, Settings, SettingsError, settings_of
from recycle_runtime.cli.output import DONE, Output, UsageError, UserError
from recycle_runtime.cli.parser import Arguments
from recycle_runtime.cli.signals import Stopped

_EXAMPLE = """\
job example {
  parallel { pipeline = 4  data = 3 }
  batch    { microbatches = 6 }
  profile  { forward = 1  backward_input = 1  backward_weight = 1  optimizer = 3 }
  memory   { capacity = 6 }
}
"""
_LARGEST_PORT = 65_535


def add_arguments(parser: Arguments) -> None:
    parser.add_argument(
        "job", metavar="JOB", nargs="?", help="a job file to begin with (default: a small example)"
    )
    parser.add_argument(
        "--port",
        type=count,
        default=0,
        metavar="N",
        help="port to serve at, on loopback (default: a free one)",
    )


def run(arguments: Namespace, output: Output) -> int:
    if arguments.port > _LARGEST_PORT:
        raise UsageError(f"--port must be from 0 to {_LARGEST_PORT}, got {arguments.port}")
    settings = _settings(arguments.job, output)
    try:
        server = Playground(settings, arguments.port)
    except OSError as error:
        raise UserError(f"cannot serve at {LOOPBACK}:{arguments.port}: {error.strerror}") from error
    with server:
        try:
            output.say(f"{server.address} shows {settings.name}; ctrl-C ends it")
            server.serve_forever(poll_interval=0.1)
        except Stopped:
            raise
        except KeyboardInterrupt:
            # The usual way to end it.
            output.say("ended")
    return DONE


def _settings(path: str | None, output: Output) -> Settings:
    if path is None:
        return settings_of(parse_job_text(_EXAMPLE, "example.job"))
    loaded = load_for(path, None)
    job = start_of(loaded.spec, output)
    try:
        settings = settings_of(job)
    except SettingsError as error:
        raise UserError(f"{path}: {error}") from error
    _check_size(settings, path)
    if job.layer_costs is not None:
        output.say("note: plans are made under the cut that the job starts with, stage by stage")
    return settings


def _check_size(settings: Settings, path: str) -> None:
    sizes = {
        "stages": settings.stages,
        "pipelines": settings.pipelines,
        "microbatches": settings.microbatches,
    }
    for name, size in sizes.items():
        if size > MOST[name]:
            raise UserError(f"{path}: too large for the playground: {size} {name}, allowed are {MOST[name]}")
    if settings.ops > MOST_OPS:
        raise UserError(
            f"{path}: too large for the playground: {settings.ops:,} ops, allowed are {MOST_OPS:,}"
        )
