"""Damaged and hostile bundles: read as they were, or refused with a sentence; never anything else."""

import hashlib
import random
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_runtime.plan.bundle import Bundle, BundleError
from recycle_runtime.plan.bundle_index import pack_index
from tests.compiler.backends.synthetic_programs import job, program
from tests.runtime.plan.test_bundle_reader import sealed

SPEC = job(3, 3, 4)
PROGRAMS = (program(SPEC), program(SPEC, [(2, 1)], seed=1), program(SPEC, [(0, 2), (2, 1)], seed=2))
DATA = bundle_bytes(source="job synthetic {}\n", plans=PROGRAMS)


def flip_bits(data: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 8])):
        changed[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def set_bytes(data: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.choice([1, 2, 4])):
        changed[dice.randrange(len(data))] = dice.choice([0, 1, 127, 128, 255, dice.randrange(256)])
    return bytes(changed)


def delete(data: bytes, dice: random.Random) -> bytes:
    start = dice.randrange(len(data))
    return data[:start] + data[start + dice.choice([1, 2, 30]) :]


def insert(data: bytes, dice: random.Random) -> bytes:
    start = dice.randrange(len(data) + 1)
    return data[:start] + dice.randbytes(dice.choice([1, 2, 30])) + data[start:]


def truncate(data: bytes, dice: random.Random) -> bytes:
    return data[: dice.randrange(len(data))]


def splice(data: bytes, dice: random.Random) -> bytes:
    start, target, length = dice.randrange(len(data)), dice.randrange(len(data)), dice.choice([1, 4, 40])
    return data[:target] + data[start : start + length] + data[target + length :]


def swap(data: bytes, dice: random.Random) -> bytes:
    first, second, third, fourth = sorted(dice.randrange(len(data) + 1) for _ in range(4))
    return data[:first] + data[third:fourth] + data[second:third] + data[first:second] + data[fourth:]


MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip_bits,
    set_bytes,
    delete,
    insert,
    truncate,
    splice,
    swap,
)


def everything(bundle: Bundle) -> list[object]:
    found: list[object] = [bundle.compiler_version, bundle.job_source, bundle.job_text, bundle.plans]
    for plan in range(len(bundle.plans)):
        for worker in bundle.workers(plan):
            found.append((worker, bundle.stream(plan, worker)))
    return found


def is_one_sentence(error: BundleError) -> bool:
    text = str(error)
    return text[:1].islower() and "\n" not in text and not text.endswith(".") and len(text) < 160


def test_ten_thousand_mutations_are_refused_or_read_identically() -> None:
    dice = random.Random(0)
    expected = everything(Bundle.parse(DATA))
    refused = 0
    for _ in range(10_000):
        mutated = dice.choice(MUTATIONS)(DATA, dice)
        try:
            bundle = Bundle.parse(mutated)
        except BundleError as error:
            assert is_one_sentence(error)
            refused += 1
            continue
        assert mutated == DATA
        assert everything(bundle) == expected
    assert refused > 9_000


BUNDLE = Bundle.parse(DATA)
INDEX = pack_index(BUNDLE)


def hostile(dice: random.Random) -> bytes:
    """Sections changed by an attacker who made the checksum right, and mostly the hashes too."""
    mutate = dice.choice(MUTATIONS)
    packed = list(BUNDLE.packed_plans)
    place = dice.randrange(len(packed))
    match dice.randrange(4):
        case 0:
            packed[place] = mutate(packed[place], dice)
            return sealed(INDEX, packed)
        case 1:
            layouts = list(BUNDLE.layouts)
            columns = mutate(BUNDLE.columns(place).data, dice)
            packed[place] = zlib.compress(columns)
            layouts[place] = layouts[place]._replace(digest=hashlib.sha256(columns).digest())
            return sealed(pack_index(replace(BUNDLE, layouts=tuple(layouts))), packed)
        case _:
            return sealed(mutate(INDEX, dice), packed)


def read_some(data: bytes, dice: random.Random) -> bool:
    """Read a bundle and some of its streams; whether all of it was accepted."""
    try:
        bundle = Bundle.parse(data)
        for plan in range(len(bundle.plans)):
            bundle.stream(plan, dice.choice(bundle.workers(plan)))
    except BundleError as error:
        assert is_one_sentence(error)
        return False
    return True


def test_hostile_bundles_with_good_checksums_are_read_or_refused() -> None:
    dice = random.Random(1)
    accepted = sum(read_some(hostile(dice), dice) for _ in range(2_000))
    assert 0 < accepted < 2_000


def test_hostile_bundles_do_not_take_much_memory() -> None:
    dice = random.Random(2)
    read_some(DATA, dice)
    tracemalloc.start()
    try:
        for _ in range(40):
            read_some(hostile(dice), dice)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
