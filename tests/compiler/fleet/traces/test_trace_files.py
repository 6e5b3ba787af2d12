"""Traces from files: three formats, and what is said about files that have none of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from recycle_compiler.diagnostics import CompileError
from recycle_compiler.fleet.traces.read import parse_trace, read_trace
from recycle_compiler.fleet.traces.trace import FleetEvent, FleetTrace, JobGrid

GRID = JobGrid(pipelines=3, stages=4)
REAL = Path(__file__).parents[5] / "shared" / "data" / "traces"
EXAMPLES = Path(__file__).parents[4] / "examples" / "traces"


def parsed(source: str, seed: int = 0) -> FleetTrace:
    return parse_trace(source, "a.trace", GRID, seed)


def refusal(source: str) -> str:
    with pytest.raises(CompileError) as caught:
        parsed(source)
    assert caught.value.exit_code == 1
    return caught.value.render()


def check_possible(trace: FleetTrace) -> None:
    """Sorted, nobody comes who is there, nobody goes who is not."""
    there = set(trace.nodes)
    assert list(trace.events) == sorted(trace.events, key=lambda event: event.at)
    for event in trace.events:
        assert 0 <= event.at <= trace.span
        assert (event.node in there) != event.added
        (there.add if event.added else there.remove)(event.node)


def test_node_events() -> None:
    trace = parsed("0,add,a\r\n0, add ,b\n\n# a comment\n1500,remove,a\n90000,add,c\n")
    assert trace == FleetTrace(
        "a.trace", 90.0, ("a", "b"), (FleetEvent(1.5, "a", False), FleetEvent(90.0, "c", True))
    )


def test_time_counts_from_the_first_line() -> None:
    trace = parsed("5000,add,a\n6000,remove,a\n")
    assert (trace.nodes, trace.span, trace.events) == (("a",), 1.0, (FleetEvent(1.0, "a", False),))


def test_count_samples() -> None:
    trace = parsed("2021-12-11, 23:59:50, 3\n2021-12-12, 00:00:10, 1\n2021-12-12, 00:01:00, 2\n")
    assert (trace.span, trace.nodes) == (70.0, ("node0", "node1", "node2"))
    assert [(event.at, event.added) for event in trace.events] == [(20.0, False), (20.0, False), (70.0, True)]
    assert trace.events[-1].node == "node3"
    assert "seed 0" in trace.about
    check_possible(trace)


def test_counts_with_another_seed_take_other_machines() -> None:
    source = "2021-12-11, 10:00:00, 50\n2021-12-11, 11:00:00, 40\n"
    assert parsed(source, 1) == parsed(source, 1)
    assert {event.node for event in parsed(source, 1).events} != {
        event.node for event in parsed(source, 2).events
    }


def test_json_lines_with_a_number_of_machines() -> None:
    trace = parsed(
        '{"nodes": 3}\n{"at": "1m30s", "failed": ["node1", 2]}\n{"at": 100, "returned": ["node1"]}\n'
    )
    assert (trace.nodes, trace.span, trace.whole) == (("node0", "node1", "node2"), 100.0, False)
    assert trace.events == (
        FleetEvent(90.0, "node1", False),
        FleetEvent(90.0, "node2", False),
        FleetEvent(100.0, "node1", True),
    )


def test_json_lines_without_machines_have_those_of_the_job() -> None:
    trace = parsed('{"at": "1h", "failed": ["a"]}\n{"at": "2h", "returned": ["b", "a"]}\n{"at": "3h"}\n')
    assert (trace.nodes, trace.whole, trace.span) == (("a",), True, 10800.0)
    assert "the job has all its own" in trace.about


def test_json_lines_of_workers() -> None:
    trace = parsed('{"at": 0, "failed": ["2:3"]}\n{"at": 60, "returned": ["2:3"], "failed": ["0:00"]}\n')
    assert trace.by_worker
    assert trace.events == (
        FleetEvent(0.0, "2:3", False),
        FleetEvent(60.0, "0:0", False),
        FleetEvent(60.0, "2:3", True),
    )


@pytest.mark.parametrize(
    ("lines", "odd"),
    [
        (["0,add,a", "0,add,b", "5,remove,a", "9,add,a"], "1 of 4 lines is out of order"),
        (["2026-01-10, 08:30:00, 3", "2026-01-10, 08:40:00, 2", "2026-01-11, 00:00:00, 9"], "2 of 3 lines"),
        (["seconds,count", "0,3", "100.5,1", "200,2"], "1 of 3 lines is out of order"),
        (['{"nodes": 2}', '{"at": 1, "failed": ["node1"]}', '{"at": 2, "returned": ["node1"]}'], "1 of 2"),
        (['{"at": 1, "failed": ["0:1"]}', '{"at": 2, "returned": ["0:1"]}', '{"at": 3}'], "2 of 3 lines"),
    ],
)
def test_lines_out_of_order_are_sorted_with_a_note(lines: list[str], odd: str) -> None:
    """The last line comes first, or the first one after a line that names columns or machines."""
    begin = int(lines[0].startswith(("seconds", '{"nodes')))
    mixed = [*lines[:begin], *reversed(lines[begin:])] if "2 of 3" in odd else _swapped(lines)
    found = parsed("\n".join(mixed))
    assert replace(found, note="") == parsed("\n".join(lines))
    assert found.note.startswith(odd) and found.note.endswith("sorted by time")


def _swapped(lines: list[str]) -> list[str]:
    """The last two the other way round."""
    return [*lines[:-2], lines[-1], lines[-2]]


@pytest.mark.parametrize("head", ["", "seconds,count\n", "seconds, nodes\n# looks\n"])
@pytest.mark.parametrize("begin", [0, 1_639_221_090])
def test_seconds_and_counts(head: str, begin: int) -> None:
    """Seconds count from anywhere."""
    trace = parsed(head + "".join(f"{begin + at}, {count}\n" for at, count in ((0, 3), (20, 1), (70, 2))))
    dated = "2021-12-11, 23:59:50, 3\n2021-12-12, 00:00:10, 1\n2021-12-12, 00:01:00, 2\n"
    assert trace == parsed(dated)


@pytest.mark.parametrize(
    ("source", "place", "words"),
    [
        ("", "a.trace: error[empty]", "holds no events"),
        ("\n  \n# nothing\n", "a.trace: error[empty]", "holds no events"),
        ("hello\n", "a.trace:1:1: error[format]", "none of the formats"),
        ("0,add,a\n5,remove\n", "a.trace:2:1: error[fields]", "3 fields, got 2"),
        ("0,add,a\n  x,remove,a\n", "a.trace:2:3: error[type]", "milliseconds, got `x`"),
        ("0,add,a\nnan,remove,a\n", "a.trace:2:1: error[type]", "milliseconds, got `nan`"),
        ("0,add,a\n-5,remove,a\n", "a.trace:2:1: error[range]", "at least 0, got -5"),
        ("0,add,a\n1e99,remove,a\n", "a.trace:2:1: error[range]", "at most 10 years"),
        ("0,add,a\n9,remove,a\n5,add,a\n", "a.trace:3:7: error[duplicate]", "it is there since line 1"),
        (
            "0,add,a\n9,add,a\n",
            "a.trace:2:7: error[duplicate]",
            "`a` cannot be added: it is there since line 1",
        ),
        ("0,add,a\n9,remove,b\n", "a.trace:2:10: error[impossible]", "no line before has added it"),
        (
            "0,add,a\n9,remove,a\n10,remove,a\n",
            "a.trace:3:11: error[impossible]",
            "it was removed on line 2 already",
        ),
        ("0,add,a\n9,removed,a\n", "a.trace:2:3: error[type]", "did you mean `remove`?"),
        ("0,add,a\n9,remove,\n", "a.trace:2:10: error[type]", "has no name"),
        ("0,add,a\n", "a.trace:1:1: error[no-time]", "at one moment"),
        ("2021-12-11, 11:15:50\n", "a.trace:1:1: error[fields]", "3 fields, got 2"),
        ("2021-13-11, 11:15:50, 4\n", "a.trace:1:1: error[type]", "no date: `2021-13-11`"),
        ("2021-12-11, 25:15:50, 4\n", "a.trace:1:13: error[type]", "no time of day"),
        ("2021-12-11, 11:15:50, -4\n", "a.trace:1:23: error[range]", "from 0 to 1,048,576, got `-4`"),
        ("2021-12-11, 11:15:50, 4.5\n", "a.trace:1:23: error[type]", "whole number, got `4.5`"),
        (f"2021-12-11, 11:15:50, {'9' * 5000}\n", "a.trace:1:23: error[range]", "from 0 to"),
        ("seconds,count\n0,4\nsoon,3\n", "a.trace:3:1: error[type]", "seconds, got `soon`"),
        ("0,4\n10,3.5\n", "a.trace:2:4: error[type]", "whole number, got `3.5`"),
        ("0,4\n10,3,1\n", "a.trace:2:1: error[fields]", "2 fields, got 3"),
        ("0,4\n1e12,3\n", "a.trace:2:1: error[range]", "at most 10 years"),
        ("5,4\n", "a.trace: error[no-time]", "at one moment"),
        ("seconds,count\n", "a.trace: error[no-time]", "at one moment"),
        ('{"at": 5\n', "a.trace:1:9: error[syntax]", "this is no JSON"),
        ('{"at": NaN}\n', "a.trace:1:1: error[syntax]", "no JSON that can be read"),
        ('{"at": 5}\n[1]\n', "a.trace:2:1: error[type]", "a line is a JSON object, got [1]"),
        ('{"failed": []}\n', "a.trace:1:1: error[missing]", "no `at`"),
        ('{"at": "soon"}\n', "a.trace:1:8: error[type]", 'a time, got "soon"'),
        ('{"at": true}\n', "a.trace:1:8: error[type]", "a time, got true"),
        ('{"at": -1}\n', "a.trace:1:8: error[range]", "at least 0, got -1"),
        ('{"at": 1, "faild": []}\n', "a.trace:1:11: error[unknown-key]", "did you mean `failed`?"),
        ('{"at": 1, "failed": "a"}\n', "a.trace:1:21: error[type]", 'must be a list, got "a"'),
        (
            '{"at": 1, "failed": [1.5]}\n',
            "a.trace:1:22: error[type]",
            "names of machines or workers, got 1.5",
        ),
        (
            '{"at": 1, "failed": ["3:0"]}\n',
            "a.trace:1:22: error[range]",
            "pipelines are 0 to 2, stages 0 to 3",
        ),
        ('{"at": 1, "failed": ["0:0", "a"]}\n', "a.trace:1:29: error[mixed]", "`a` is a machine"),
        (
            '{"at": 1, "returned": ["0:0"]}\n',
            "a.trace:1:24: error[duplicate]",
            "it is there from the beginning",
        ),
        ('{"at": 1, "failed": ["a", "a"]}\n', "a.trace:1:22: error[impossible]", "removed on line 1 already"),
        ('{"nodes": -1}\n', "a.trace:1:11: error[range]", "nodes must be from 0"),
        ('{"nodes": "all"}\n', "a.trace:1:11: error[type]", "a number or a list of names"),
        ('{"nodes": ["a", "a"]}\n', "a.trace:1:12: error[duplicate]", "`a` cannot be added"),
        (
            '{"nodes": 2}\n{"at": 1, "failed": ["node2"]}\n',
            "a.trace:2:22: error[impossible]",
            "no line before",
        ),
        (
            '{"at": 1}\n{"nodes": 2}\n',
            "a.trace:2:2: error[unknown-key]",
            "`nodes` stands alone on the first line",
        ),
        (
            '{"nodes": 2}\n{"at": 1, "failed": ["n1"]}\n',
            "a.trace:2:22: error",
            "calls the machines node0 to node1",
        ),
        (
            '{"at": 1, "failed": ["a"], "failed": ["b"]}\n',
            "a.trace:1:28: error[duplicate]",
            "`failed` is given twice",
        ),
        ('{"nodes": 2}\n', "a.trace: error[no-time]", "nothing happens after time 0"),
        ("0,add,a\n1e400,remove,a\n", "a.trace:2:1: error[range]", "got a time without end"),
        ('{"at": 1e999, "failed": ["a"]}\n', "a.trace:1:1: error[range]", "got a time without end"),
        ('{"at": ' + "9" * 400 + "}\n", "a.trace:1:8: error[range]", "got a time without end"),
        ('{"at": -' + "9" * 400 + "}\n", "a.trace:1:8: error[range]", "must be at least 0"),
        ("0,add,a\n-0,remove,a\n", "a.trace:1:1: error[no-time]", "all events happen at one moment"),
    ],
)
def test_mistakes_are_told_with_their_place(source: str, place: str, words: str) -> None:
    said = refusal(source)
    assert said.startswith(place), said
    assert words in said


def test_all_mistakes_are_told_at_once() -> None:
    said = refusal("0,add,a\nx,add,b\n7,remove,c\n")
    assert "a.trace:2:1" in said
    assert "a.trace:3:10" in said


def test_a_flood_of_mistakes_ends() -> None:
    assert refusal("0,add,a\n" + "1,add,a\n" * 10_000).count("error[duplicate]") == 50


def test_a_deep_line_is_refused() -> None:
    assert "no JSON that can be read" in refusal('{"at": ' + "[" * 200_000 + "\n")


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"\x7fELF\xff\xfe", "is not UTF-8 text"), (b"0,add,a\0\n", "is not text"), (b"", "holds no events")],
)
def test_files_that_are_no_traces(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "odd"
    path.write_bytes(content)
    with pytest.raises(CompileError) as caught:
        read_trace(path, GRID)
    assert words in caught.value.render()


def test_folders_and_missing_files(tmp_path: Path) -> None:
    for path, words in ((tmp_path, "is a folder"), (tmp_path / "nope", "does not exist")):
        with pytest.raises(CompileError) as caught:
            read_trace(path, GRID)
        assert words in caught.value.render()


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(40 << 20)
    with pytest.raises(CompileError) as caught:
        read_trace(path, GRID)
    assert "larger than 32 MiB" in caught.value.render()


def test_examples_are_good() -> None:
    names = sorted(path.name for path in EXAMPLES.iterdir())
    assert names == ["counts.txt", "spot.csv", "workers.jsonl"]
    for name in names:
        trace = read_trace(EXAMPLES / name, GRID)
        assert trace.span == 6 * 3600
        if not trace.by_worker:
            check_possible(trace)


@pytest.mark.skipif(not REAL.is_dir(), reason="needs ../shared/data/traces")
@pytest.mark.parametrize(
    ("name", "hours", "most", "least"),
    [("aws-p3.csv", 11.4, 32, 10), ("gcp-a100.txt", 27.0, 64, 17), ("every-30m.csv", 7.5, 30, 15)],
)
def test_real_traces(name: str, hours: float, most: int, least: int) -> None:
    trace = read_trace(REAL / name, GRID)
    check_possible(trace)
    assert trace.span / 3600 == pytest.approx(hours, abs=0.05)
    counts = [len(trace.nodes)]
    for _, events in trace.moments():
        counts.append(counts[-1] + sum(1 if event.added else -1 for event in events))
    assert (max(counts), min(counts)) == (most, least)
