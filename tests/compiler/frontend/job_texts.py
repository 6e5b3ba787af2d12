"""Job files as text: one to change a little, and random ones in any layout."""

from hypothesis import strategies as st

from recycle_compiler.diagnostics import CompileError
from recycle_compiler.frontend import parse_job_text
from recycle_compiler.ir.job import JobSpec

BLOCKS = {
    "parallel": "parallel { pipeline = 4  data = 3 }",
    "batch": "batch { microbatches = 6 }",
    "profile": "profile { forward = 1  backward_input = 1  backward_weight = 1 }",
    "memory": "",
    "techniques": "",
    "tolerate": "",
    "solver": "",
}

_WORDS = "0 -1 1.5 1e9 GiB ms slot unlimited job device from profile memory parallel layers off x *"
TOKENS = [
    "",
    "\0",
    "9" * 20,
    "model gpt {",
    "\u00e9",
    "\u65e5",
    "\u202e",
    *"{}[]=,#\n\t\"'%",
    *_WORDS.split(),
]
"""What to damage a text with."""


def job_text(*more: str, **changed: str) -> str:
    """A small good job with some blocks in place of others, one block a line."""
    lines = [text for text in ({**BLOCKS, **changed}).values() if text]
    return "\n".join(["job a {", *lines, *more, "}"]) + "\n"


def parse(*more: str, **changed: str) -> JobSpec:
    return parse_job_text(job_text(*more, **changed), "a.job")


def errors(*more: str, **changed: str) -> CompileError:
    """The mistakes in a job; fails when there are none."""
    return errors_of(job_text(*more, **changed))


def errors_of(source: str, file_name: str = "a.job") -> CompileError:
    try:
        spec = parse_job_text(source, file_name)
    except CompileError as error:
        return error
    raise AssertionError(f"no error in {source}: {spec}")


def codes(error: CompileError) -> list[str]:
    return [one.code for one in error.diagnostics]


def marked(error: CompileError) -> list[str]:
    """The text under each caret."""
    lines = error.source.split("\n")
    spans = [one.span for one in error.diagnostics if one.span]
    return [lines[span.line - 1][span.column - 1 : span.end_column - 1] for span in spans]


@st.composite
def job_tokens(draw: st.DrawFn) -> list[str]:
    """The tokens of a good job; every value and most blocks may be there or not."""
    stages, pipelines = draw(st.integers(1, 5)), draw(st.integers(1, 4))

    def per_stage(values: st.SearchStrategy[str]) -> list[str]:
        if draw(st.booleans()):
            return draw(values).split()
        items: list[str] = []
        for _ in range(stages):
            items += [*draw(values).split(), ","]
        return ["[", *items[: len(items) - draw(st.integers(0, 1))], "]"]

    times = st.sampled_from(["1", "2.5", "0.125", "3 slot", "10", "1000000000"])
    tokens = ["parallel", "{", "pipeline", "=", str(stages), "data", "=", str(pipelines), "}"]
    tokens += ["batch", "{", "microbatches", "=", str(draw(st.integers(1, 9))), "}", "profile", "{"]
    for key in ("forward", "backward_input", "backward_weight"):
        tokens += [key, "=", *per_stage(times)]
    for key in ("optimizer", "reduce", "transfer"):
        tokens += [key, "=", *per_stage(times)] * draw(st.integers(0, 1))
    tokens.append("}")
    amounts = st.sampled_from(["1", "1.5", "7", "unlimited"])
    tokens += ["memory", "{", "capacity", "=", *per_stage(amounts), "}"] * draw(st.integers(0, 1))
    techniques = draw(st.lists(st.sampled_from(["adaptive", "decouple", "stagger"]), unique=True))
    tokens += ["techniques", "{", *techniques, "}"] * draw(st.integers(0, 1))
    tokens += ["solver", "{", "time_limit", "=", "10", "s", "gap", "=", "0.5", "%", "}"] * draw(
        st.integers(0, 1)
    )
    return ["job", draw(st.sampled_from(["a", "s", "model", "gpt3-6.7b"])), "{", *tokens, "}"]


GAPS = st.sampled_from(
    [" ", "  ", "\n", "\n\n", "\n\n\n", "\t", " # c\n", "#\n", "\n# own line\n", ' # "q" = { [\n']
)


@st.composite
def job_sources(draw: st.DrawFn) -> str:
    """A good job with any white space and comments between its tokens."""
    tokens = draw(job_tokens())
    gaps = draw(st.lists(GAPS, min_size=len(tokens) + 1, max_size=len(tokens) + 1))
    return "".join(gap + token for gap, token in zip(gaps, [*tokens, ""], strict=True))


@st.composite
def layered_sources(draw: st.DrawFn) -> str:
    """A good job in layers, with any white space and comments between its tokens."""
    count = draw(st.integers(2, 9))

    def per_layer(values: st.SearchStrategy[str]) -> list[str]:
        if draw(st.booleans()):
            return draw(values).split()
        items: list[str] = []
        left = count
        while left:
            times = draw(st.integers(1, left))
            repeat = [] if times == 1 and draw(st.booleans()) else [str(times), "*"]
            items += [*repeat, *draw(values).split(), ","]
            left -= times
        return ["[", *items[: len(items) - draw(st.integers(0, 1))], "]"]

    times = st.sampled_from(["1", "2.5", "0.125", "3 slot", "10"])
    tokens = ["layers", "{", "count", "=", str(count)]
    for key in ("forward", "backward_input", "backward_weight"):
        tokens += [key, "=", *per_layer(times)]
    for key in ("optimizer", "reduce", "transfer"):
        tokens += [key, "=", *per_layer(times)] * draw(st.integers(0, 1))
    tokens += ["activation", "=", *per_layer(st.sampled_from(["1", "0.5"]))] * draw(st.integers(0, 1))
    tokens += ["parameters", "=", *per_layer(st.sampled_from(["0", "3 KiB"]))] * draw(st.integers(0, 1))
    tokens += ["resident", "=", *per_layer(st.sampled_from(["0", "0.25"]))] * draw(st.integers(0, 1)) + ["}"]
    tokens += ["memory", "{", "capacity", "=", draw(st.sampled_from(["20", "unlimited"])), "}"]
    parallel, most = draw(_parallel(count))
    microbatches = str(draw(st.integers(most, most + 9)))
    tokens += [*parallel, "batch", "{", "microbatches", "=", microbatches, "}"]
    gaps = draw(st.lists(GAPS, min_size=len(tokens) + 4, max_size=len(tokens) + 4))
    return "".join(gap + token for gap, token in zip(gaps, ["job", "a", "{", *tokens, "}"], strict=True))


@st.composite
def _parallel(draw: st.DrawFn, layers: int) -> tuple[list[str], int]:
    """The parallel block that a job in layers starts from, with the micro-batches that it needs."""
    if draw(st.booleans()):
        workers = draw(st.integers(2, 12))
        return ["parallel", "{", "workers", "=", str(workers), "}"], workers
    stages = draw(st.integers(1, layers))
    tokens = ["parallel", "{", "pipeline", "=", str(stages), "data", "=", str(draw(st.integers(1, 4)))]
    tokens += ["recut", "=", draw(st.sampled_from(["on", "off"]))] * draw(st.integers(0, 1))
    tokens += ["groups", "=", draw(st.sampled_from(["auto", "off"]))] * draw(st.integers(0, 1))
    if draw(st.booleans()):
        tokens += ["cut", "=", "[", str(stages - 1), "*", "1", ",", str(layers - stages + 1), "]"]
        tokens = tokens if stages > 1 else tokens[:-9]
    return [*tokens, "}"], 1
