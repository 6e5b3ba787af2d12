"""Rules beyond the grammar: each broken one is found, at its place, with the right exit code."""

import pytest

from tests.compiler.frontend.job_texts import codes, errors, errors_of, job_text, marked

TIMES = "forward = 1  backward_input = 1  backward_weight = 1"


@pytest.mark.parametrize(
    ("block", "text", "code", "place"),
    [
        ("parallel", "parallel { pipeline = 0  data = 3 }", "range", "0"),
        ("parallel", "parallel { pipeline = 2.5  data = 3 }", "type", "2.5"),
        ("parallel", "parallel { pipeline = 4 ms  data = 3 }", "type", "4 ms"),
        ("parallel", "parallel { pipeline = four  data = 3 }", "type", "four"),
        ("parallel", 'parallel { pipeline = "4"  data = 3 }', "type", '"4"'),
        ("parallel", "parallel { pipeline = [4]  data = 3 }", "type", "["),
        ("parallel", "parallel { pipeline = 1048577  data = 3 }", "range", "1048577"),
        ("parallel", "parallel { pipeline = 4  data = 3  tensor = 100000 }", "too-large", "parallel"),
        ("batch", "batch { microbatches = -6 }", "range", "-6"),
        ("batch", "batch { microbatches = 5000000 }", "too-large", "5000000"),
        ("batch", "batch { }", "missing", "batch"),
        ("batch", "batch { global = 12 }", "missing", "batch"),
        ("batch", "batch { microbatches = 6  global = 36 }", "conflict", "global"),
        ("batch", "batch { global = 2  micro = 1 }", "divide", "2"),
        ("profile", f"profile {{ {TIMES}  unit = ns }}", "unit", "ns"),
        ("profile", f"profile {{ {TIMES}  unit = 3 }}", "unit", "3"),
        ("profile", f'profile {{ {TIMES}  reduce = "1" }}', "type", '"1"'),
        ("profile", f"profile {{ {TIMES}  reduce = -0.5 }}", "range", "-0.5"),
        ("profile", f"profile {{ {TIMES}  reduce = 50% }}", "unit", "50%"),
        ("profile", f"profile {{ {TIMES}  activation = 1 ms }}", "unit", "1 ms"),
        ("profile", f"profile {{ {TIMES}  activation = 1.0001 }}", "precision", "1.0001"),
        ("profile", f"profile {{ {TIMES}  activation = 0.3 B }}", "precision", "0.3 B"),
        ("profile", f"profile {{ {TIMES}  activation = 1025 TiB }}", "range", "1025 TiB"),
        ("profile", f"profile {{ {TIMES}  kept_for_weight = 2 }}", "range", "2"),
        ("profile", f"profile {{ {TIMES}  kept_for_weight = [1, 1, 1.5, 0] }}", "range", "1.5"),
        ("profile", f"profile {{ {TIMES}  activation = 1 }}\nmemory {{ capacity = 1 GiB }}", "unit", "1"),
        ("profile", f"profile {{ {TIMES} }}\nmemory {{ capacity = 1 GiB }}", "missing", "profile"),
        ("profile", f"profile {{ unit = ms  {TIMES}  reduce = 1 slot }}", "unit", "1 slot"),
        ("profile", "", "missing", "a"),
        ("memory", "memory { capacity = infinite }", "type", "infinite"),
        ("memory", 'memory { capacity = "4" }', "type", '"4"'),
        ("memory", "memory { capacity = -1 }", "range", "-1"),
        ("memory", 'memory from "x"', "conflict", '"x"'),
        ("tolerate", "tolerate { failures = -3 }", "range", "-3"),
        ("tolerate", "tolerate { failures = 2.5 }", "type", "2.5"),
        ("tolerate", "tolerate { failures = 3 ms }", "unit", "3 ms"),
        ("tolerate", "tolerate { failures = -1% }", "range", "-1%"),
        ("tolerate", "tolerate { failures = 0.00001% }", "precision", "0.00001%"),
        ("tolerate", "tolerate { failures }", "missing-value", "failures"),
        ("solver", "solver { time_limit = 60 slot }", "unit", "60 slot"),
        ("solver", "solver { time_limit = 9999999 s }", "range", "9999999 s"),
        ("solver", "solver { gap = 100.0001% }", "range", "100.0001%"),
        ("solver", "solver { seed = -1 }", "range", "-1"),
        ("solver", "device a100", "conflict", "device"),
        ("techniques", "techniques { adaptive = 1 }", "not-a-setting", "adaptive"),
        ("techniques", "techniques { stagger stagger }", "duplicate", "stagger"),
        ("techniques", "techniques", "not-a-setting", "techniques"),
    ],
)
def test_a_mistake_is_found_at_its_place_with_a_hint(block: str, text: str, code: str, place: str) -> None:
    error = errors(**{block: text})
    assert codes(error)[:1] == [code]
    assert marked(error)[:1] == [place]
    assert all(one.hint for one in error.diagnostics)
    assert error.exit_code == 1


@pytest.mark.parametrize(
    ("changed", "code", "place"),
    [
        ({"tolerate": "tolerate { failures = 9 }"}, "too-many-failures", "9"),
        ({"tolerate": "tolerate { failures = 100% }"}, "too-many-failures", "100%"),
        ({"techniques": "techniques { }", "tolerate": "tolerate { failures = 9 }"}, "too-many-failures", "9"),
        ({"memory": "memory { capacity = [1, 0, 1, 1] }"}, "memory-too-small", "0"),
        ({"memory": "memory { capacity = 0.5 }"}, "memory-too-small", "0.5"),
    ],
)
def test_a_job_that_no_plan_can_serve_has_its_own_exit_code(
    changed: dict[str, str], code: str, place: str
) -> None:
    error = errors(**changed)
    assert (codes(error), marked(error), error.exit_code) == ([code], [place], 3)


def test_any_other_mistake_comes_first_in_the_exit_code() -> None:
    error = errors(tolerate="tolerate { failures = 9 }", solver="solver { seed = -1 }")
    assert (codes(error), error.exit_code) == (["too-many-failures", "range"], 1)


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    error = errors(
        parallel="parallel { pipeline = 0  data = x }",
        profile="profile { forward = 0  backward_input = 1 GiB  backward_weight = 1 }",
        memory="memory { capacity = soup }",
        tolerate="tolerate { failures = 200% }",
        solver="solver { gap = 1 }",
    )
    assert marked(error) == ["0", "x", "0", "1 GiB", "soup", "200%", "1"]


def test_a_misspelt_name_is_read_as_what_was_meant() -> None:
    error = errors(
        batch="bach { microbatch = 0 }",
        techniques="techniques { adaptiv }",
        tolerate="tolerate { failures = 8 }",
    )
    assert codes(error) == ["unknown-block", "unknown-setting", "range", "unknown-switch"]
    assert [one.hint for one in error.diagnostics][:2] == [
        "did you mean `batch`?",
        "did you mean `microbatches`?",
    ]


def test_ops_that_add_up_to_an_overflow_are_refused() -> None:
    profile = (
        "profile { forward = 1000000000000  backward_input = 1  backward_weight = 1  activation = 1024 TiB }"
    )
    error = errors(batch="batch { microbatches = 100000 }", profile=profile)
    assert codes(error) == ["too-large", "too-large"]


@pytest.mark.parametrize("digits", ["9" * 31, "9" * 100_000, "0." + "0" * 100_000 + "1"])
def test_endless_numbers_are_refused_at_once(digits: str) -> None:
    error = errors(parallel=f"parallel {{ pipeline = {digits}  data = 3 }}")
    assert codes(error) == ["range"]
    assert len(error.render()) < 500


def test_an_endless_name_is_refused() -> None:
    error = errors_of(f"job {'a' * 101} {{ }}")
    assert "at most 100 characters" in str(error)


def test_a_thousand_mistakes_are_not_all_shown() -> None:
    error = errors(*(f"foo{number} {{ }}" for number in range(1000)))
    assert len(error.diagnostics) == 51
    assert error.diagnostics[-1].code == "too-many-errors"


def test_a_setting_in_the_wrong_block_is_sent_home() -> None:
    error = errors(parallel="parallel { pipeline = 4  data = 3  capacity = 4 }")
    assert [one.hint for one in error.diagnostics] == ["it belongs in block `memory`"]


@pytest.mark.parametrize("number", ["1e400", "80e9", "1.5E+6", "2e-3", "-1e0"])
@pytest.mark.parametrize("block", ["memory { capacity = # }", "solver { time_limit = 1 s  gap = #% }"])
def test_numbers_have_no_exponents(number: str, block: str) -> None:
    """Said once, with the number alone, whatever follows."""
    (error,) = errors(**{block.split()[0]: block.replace("#", number)}).diagnostics
    assert (error.code, error.message) == ("type", f"numbers have no exponents, got `{number}`")
    assert error.hint == "write it out in digits, or use another unit"


def test_an_exponent_before_a_wrong_unit_is_not_worked_out() -> None:
    (error,) = errors(memory="memory { capacity = 1e99999999 GB }").diagnostics
    assert error.hint == "did you mean `GiB`?"


@pytest.mark.parametrize(
    ("unit", "hint"),
    [
        ("GB", "did you mean `GiB`?"),
        ("mb", "did you mean `MiB`?"),
        ("gib", "did you mean `GiB`?"),
        ("sec", "write it as `80 s`"),
        ("min", "write it as `4800 s`"),
        ("hours", "write it as `288000 s`"),
        ("ns", "write it as `0.08 us`"),
        ("e9", "numbers are written out in digits, without `_` or exponents"),
        ("_000", "numbers are written out in digits, without `_` or exponents"),
    ],
)
def test_an_unknown_unit_is_put_right(unit: str, hint: str) -> None:
    error = errors(memory=f"memory {{ capacity = 80 {unit} }}")
    assert [(one.code, one.hint) for one in error.diagnostics] == [("unknown-unit", hint)]


@pytest.mark.parametrize(
    "blocks",
    [
        {"solver": "solver { time_limit = 60 min }"},
        {"batch": "batch { microbatches = 6 wibble }"},
        {"batch": "batch { global = 6 wibble  micro = 1 }"},
        {"parallel": "parallel { pipeline = 4 x  data = 3 }"},
        {
            "profile": "profile { forward = 1  backward_input = 1  backward_weight = 1  activation = 2 MB }",
            "memory": "memory { capacity = 80 MiB }",
        },
    ],
)
def test_nothing_more_is_said_about_a_number_whose_unit_is_unknown(blocks: dict[str, str]) -> None:
    assert codes(errors(**blocks)) == ["unknown-unit"]


def test_minutes_of_a_fraction() -> None:
    (one,) = errors(solver="solver { time_limit = 1.5 min }").diagnostics
    assert one.hint == "write it as `90 s`"


@pytest.mark.parametrize("name", ["3x", '"a b"', "my plan", "a/b", "a@b", "\u65e5\u672c", "", "a:b", "-a"])
def test_a_bad_name_of_a_job_is_one_mistake(name: str) -> None:
    error = errors_of(job_text().replace("job a {", f"job {name} {{"))
    assert codes(error) == ["bad-name" if name else "no-name"]
    assert marked(error) == [name or "{"]


@pytest.mark.parametrize("rest", ["}", "\n}", "\ntransfer = 0 }", "transfer = 0 }"])
def test_a_setting_without_a_value_is_marked_itself(rest: str) -> None:
    error = errors(profile=f"profile {{ forward = 1  reduce = {rest}")
    assert [(one.code, one.message) for one in error.diagnostics] == [
        ("missing-value", "`reduce` has no value")
    ]
    assert marked(error) == ["reduce"]
