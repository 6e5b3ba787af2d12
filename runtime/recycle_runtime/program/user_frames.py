"""Place of an event in the user's code: frames of a traceback without ours and torch's.

Standard library only.
"""

import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

Frame = tuple[str, int, str]
"""File, line, function."""

_RUNTIME = str(Path(__file__).resolve().parents[1])
_LIBRARIES = ("site-packages", "dist-packages")
_MOST_FRAMES = 12
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
_DUMPED = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


def frames_of(error: BaseException) -> tuple[Frame, ...]:
    """Of the error's traceback, the innermost last."""
    found = traceback.extract_tb(error.__traceback__)
    return tuple((frame.filename, frame.lineno or 0, frame.name) for frame in found)


def dumped_frames(dump: str) -> tuple[Frame, ...]:
    """Of what faulthandler has written: the thread that runs the user's code, the innermost frame last."""
    threads = [_frames_in(text) for text in _THREAD.split(dump)]
    threads = [frames for frames in threads if frames]
    working = [frames for frames in threads if any(_is_work(file) for file, _, _ in frames)]
    # The listening threads and that of the heartbeat have no frames of the user's.
    return next(
        (frames for frames in (*working, *threads) if user_frames(frames)), working[0] if working else ()
    )


def user_frames(frames: Iterable[Frame]) -> tuple[Frame, ...]:
    """Without the runtime's and torch's own, and without Python's where these call it."""
    kept = [frame for frame in frames if not _is_ours(frame[0])]
    return tuple(kept[-_MOST_FRAMES:])


def without_torch(frames: Iterable[Frame]) -> tuple[Frame, ...]:
    """Without torch's own and Python's: what is left may be the runtime's."""
    return tuple(frame for frame in frames if frame[0].startswith(f"{_RUNTIME}/") or not _is_ours(frame[0]))


def place_text(frame: Frame) -> str:
    """File, line and function, and the line itself where it can be read."""
    file, number, function = frame
    source = linecache.getline(file, number).strip()
    return f"{file}:{number}, in {function}" + (f": `{source}`" if source else "")


def frames_text(frames: Sequence[Frame]) -> str:
    """As Python prints a traceback: place, and the line itself where it can be read."""
    lines: list[str] = []
    for file, number, function in frames:
        lines.append(f'  File "{file}", line {number}, in {function}')
        if source := linecache.getline(file, number).strip():
            lines.append(f"    {source}")
    return "\n".join(lines)


def _frames_in(text: str) -> tuple[Frame, ...]:
    found = [(file, int(line), function) for file, line, function in _DUMPED.findall(text)]
    return tuple(reversed(found))


def _is_work(file: str) -> bool:
    return file.startswith(_RUNTIME) and ("/execution/" in file or "/worker/process" in file)


def _is_ours(file: str) -> bool:
    """The runtime's, torch's, or Python's own."""
    if file.startswith("<frozen "):
        return True
    is_library = any(f"/{name}/" in file for name in _LIBRARIES)
    return file.startswith(_own_folders()) or (not is_library and file.startswith(_standard_library()))


@cache
def _own_folders() -> tuple[str, ...]:
    torch = find_spec("torch")
    places = (
        []
        if torch is None or torch.submodule_search_locations is None
        else [*torch.submodule_search_locations]
    )
    return (f"{_RUNTIME}/", *(f"{place}/" for place in places))


@cache
def _standard_library() -> str:
    return f"{sysconfig.get_paths()['stdlib']}/"
