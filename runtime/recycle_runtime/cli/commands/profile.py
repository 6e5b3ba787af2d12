"""`recycle-run profile`: measure what the stages or layers of a program cost on this machine."""

import argparse
import os
from argparse import ArgumentParser, Namespace
from pathlib import Path

from recycle_runtime.cli.options.run import add_options
from recycle_runtime.cli.output import DONE, Output, UserError
from recycle_runtime.cli.signals import stopping_on_signals
from recycle_runtime.devices import (
    VARIABLE,
    Device,
    ListingError,
    WorkerDevices,
    listed_gpus,
    named_devices,
    visible_devices,
)
from recycle_runtime.files import check_writable, write_whole
from recycle_runtime.options.run import PROFILE


def add_arguments(parser: ArgumentParser) -> None:
    add_options(parser, PROFILE)
    pieces = parser.add_mutually_exclusive_group()
    pieces.add_argument("--stages", type=_positive, metavar="S", help="measure so many stages")
    pieces.add_argument(
        "--layers",
        action="store_true",
        help="measure every layer, for jobs that may be re-cut (default if the program gives layers)",
    )
    parser.add_argument(
        "-o", "--output", dest="out", required=True, metavar="PROFILE.json", help="the profile to write"
    )
    parser.add_argument(
        "--repeat", type=_positive, default=20, metavar="N", help="measurements per op (default: 20)"
    )
    parser.add_argument(
        "--microbatches",
        type=_positive,
        default=16,
        metavar="N",
        help="the first of the data, whose times are compared where their shapes are unlike (default: 16)",
    )
    parser.add_argument(
        "--pipelines",
        type=_positive,
        default=1,
        metavar="D",
        help="workers that reduce gradients: over NCCL where several devices are visible, on a CPU over "
        "loopback (default: 1, no reduction)",
    )
    parser.add_argument(
        "--threads",
        type=_positive,
        default=1,
        metavar="N",
        help="CPU threads of torch (default: 1, as in a worker)",
    )
    parser.add_argument(
        "--busy-workers",
        type=_count,
        default=0,
        metavar="N",
        help="other workers that share the device and are kept busy meanwhile (default: 0)",
    )


def run(arguments: Namespace, output: Output) -> int:
    from recycle_runtime.profiler import Options, profile, profile_table
    from recycle_runtime.profiler.crowd import crowd
    from recycle_runtime.profiler.report import UNSTEADY, WHOLE_LAYERS
    from recycle_runtime.program.errors import ProgramError
    from recycle_runtime.program.layers import layer_count
    from recycle_runtime.program.loading import load_program

    # The program may change the working directory.
    path = Path(arguments.out).absolute()
    source = Path(arguments.program).absolute()
    options = Options(
        stages=arguments.stages,
        device=arguments.device,
        repeat=arguments.repeat,
        microbatches=arguments.microbatches,
        seed=arguments.seed,
        pipelines=arguments.pipelines,
        threads=arguments.threads,
        devices=_own_devices() if arguments.device == "cuda" else (),
        is_crowded=arguments.busy_workers > 0,
    )
    check_writable(Path(arguments.out))
    busy = arguments.busy_workers
    try:
        program = load_program(arguments.program)
        # As if this worker and the others shared the model.
        stages = options.stages or (min(busy + 1, layer_count(program)) if busy else 1)
        with (
            stopping_on_signals(),
            crowd(str(source), stages, options.device, options.seed, busy),
        ):
            measured = profile(program, options, lambda piece: output.say(f"measuring {piece}"))
    except ProgramError as error:
        raise UserError(str(error) + (f"\nhint: {error.hint}" if error.hint else "")) from None
    write_whole(path, measured.to_text().encode("utf-8"))
    output.written.append(arguments.out)
    if not output.quiet:
        output.words(f"{profile_table(measured)}\n")
    if unsteady := measured.unsteady():
        numbers = ", ".join(map(str, unsteady))
        output.say(
            f"note: half of the times differ by more than {UNSTEADY:.0%} of the median at "
            f"{measured.noun} {numbers}: measure on an idle machine, or with a larger --repeat"
        )
    output.say(f"measured {measured.details['computed']}")
    if (spread := measured.spread_ppm) is not None:
        drawn, shapes = (measured.details[key] for key in ("microbatches", "shapes"))
        output.say(
            f"{drawn} micro-batches have {shapes} shapes: their times differ by {spread / 10_000:.1f} % "
            "(standard deviation); times are means of them all, memory and messages those of the largest"
        )
    if program.has_parallelize:
        output.say(f"note: {WHOLE_LAYERS}")
    if (over := measured.split_ppm) is not None:
        output.say(f"two halves of a micro-batch take {over / 10_000:.1f} % longer than the whole")
    elif measured.why_not_split:
        output.say(f"note: micro-batches cannot be split in two: {measured.why_not_split}")
    if (overhead := measured.details.get("overhead_bytes")) is not None:
        output.say(f"{overhead / 2**30:.2f} GiB: {measured.details['overhead_measured']}")
    output.say(f'wrote {arguments.out}: use it with `profile from "{path.name}"`')
    return DONE


def _own_devices() -> tuple[Device, ...]:
    """Devices for workers with one each, the first of which is all that this process sees from now on; none
    where workers would share one."""
    from recycle_runtime.transport.nccl import set_environment

    setting = os.environ.get(VARIABLE)
    try:
        visible = visible_devices(setting, listed_gpus())
    except ListingError:
        visible = named_devices(setting)
    devices = visible.devices
    if visible.mistakes or len(devices) < 2:
        return ()
    set_environment()
    WorkerDevices(devices, len(devices)).use(0)
    return devices


def _positive(text: str) -> int:
    return _whole(text, 1)


def _count(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit() and least <= int(text) < 1 << 31):
        raise argparse.ArgumentTypeError(f"must be a whole number from {least}, got {text!r}")
    return int(text)
