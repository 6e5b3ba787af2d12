"""Messages for a job that is wrong: one golden for each family of mistakes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from recycle_compiler.diagnostics import CompileError
from recycle_compiler.frontend import load_job
from tests.compiler.frontend.job_texts import errors_of, job_text

GPT = "model gpt { layers = 32  hidden = 4096  heads = 32  sequence = 2048  vocabulary = 50304 }"
LAYERS = """\
layers {
  forward = [0.3, 28 * 1, 2]  backward_input = [0.45, 28 * 1.5, 3]  backward_weight = [0.24, 28 * 0.8, 1.6]
  activation = [0, 28 * 1, 0]
}"""

CASES = {
    "syntax": """\
job x {
  parallel { pipeline 4, data: 3 }
  batch { microbatches = }
  profile {
    forward = [1, 2 3]
    backward_input = "abc
  }
  memory { capacity = [1, 2 }
  device = a100
}
job y { }
""",
    "unclosed-block": """\
job x {
  parallel { pipeline = 4  data = 3
  batch { microbatches = 6 }
""",
    "unknown-names": """\
job x {
  paralel { pipeline = 4  data = 3 }
  batch { microbatches = 6  wibble = 3 }
  profile { forward = 1  backward_input = 1  backward_weights = 1  capacity = 4 }
  techniques { adaptive  decoupled }
  gpt { layers = 32 }
  failures = 3
}
""",
    "experts": """\
job x {
  parallel { pipeline = 4  data = 3  tied = ends  recut = on }
  batch { microbatches = 6  split = 4% }
  profile { forward = 1  backward_input = 1  backward_weight = 1 }
  experts { slots = 0  every = -1 }
  techniques { decouple }
}
""",
    "exchange-without-experts": job_text(
        profile="profile { forward = 1  backward_input = 1  backward_weight = 1  exchange = 1 }"
    ),
    "experts-of-a-model": """\
job x {
  parallel { pipeline = 4  data = 4 }
  batch { microbatches = 6  micro = 1 }
  model gpt {
    layers = 8  hidden = 512  heads = 8  sequence = 512  vocabulary = 5000
    experts = 9  active = 12  imbalance = 2
  }
  device a100
  optimizer { state = sharded }
  experts { slots = 2 }
  memory { capacity = 80 GiB }
}
""",
    "experts-without-room": """\
job x {
  parallel { pipeline = 4  data = 4 }
  batch { microbatches = 6  micro = 1 }
  model gpt { layers = 8  hidden = 512  heads = 8  sequence = 512  vocabulary = 5000  experts = 9 }
  device a100
  optimizer { state = sharded }
  experts { slots = 2 }
  memory { capacity = 80 GiB }
}
""",
    "experts-of-layers": """\
job x {
  parallel { pipeline = 2  data = 2 }
  batch { microbatches = 6 }
  layers { forward = [4 * 1]  backward_input = 1  backward_weight = 1  experts = [0, 8, 9, 0] }
  optimizer { state = sharded }
  experts { slots = 4 }
}
""",
    "experts-of-layers-without-slots": """\
job x {
  parallel { pipeline = 2  data = 2 }
  batch { microbatches = 6 }
  layers { forward = [4 * 1]  backward_input = 1  backward_weight = 1  experts = 4 }
  optimizer { state = sharded }
}
""",
    "experts-of-layers-in-words": """\
job x {
  parallel { pipeline = 2  data = 2 }
  batch { microbatches = 6 }
  layers { forward = [4 * 1]  backward_input = 1  backward_weight = 1  experts = [many, -1, 2.5, 3] }
  optimizer { state = sharded }
  experts { slots = 4 }
}
""",
    "experts-after-failures": """\
job x {
  parallel { pipeline = 4  data = 4 }
  batch { microbatches = 6  micro = 1 }
  model gpt { layers = 8  hidden = 512  heads = 8  sequence = 512  vocabulary = 5000  experts = 8 }
  device a100
  optimizer { state = sharded }
  experts { slots = 2 }
  memory { capacity = 80 GiB }
  tolerate { failures = 4 }
}
""",
    "duplicates": job_text(
        "batch { microbatches = 3 }", parallel="parallel { pipeline = 4  data = 3  data = 2 }"
    ),
    "missing": "job x {\n  parallel { pipeline = 4 }\n  profile { forward = 1 }\n  tolerate { }\n}\n",
    "units": """\
job x {
  parallel { pipeline = 4  data = 3 }
  batch { microbatches = 6 }
  profile {
    forward = 1 sec  backward_input = 1 MiB
    backward_weight = 3 ms  optimizer = [1 slots]
  }
  memory { capacity = 80 GB }
  solver { time_limit = 60  gap = 0.01 }
}
""",
    "mixed-memory": job_text(
        profile="profile { forward = 1  backward_input = 1  backward_weight = 1  activation = 2 }",
        memory="memory { capacity = [4, 80 MiB, 3, 0] }",
    ),
    "lengths": job_text(
        profile="profile { forward = [1, 2]  backward_input = 1  backward_weight = [1]  transfer = [1, 1] }",
        memory="memory { capacity = [4, 3, 2, 1, 1] }",
    ),
    "times": """\
job x {
  parallel { pipeline = 4  data = 3 }
  batch { microbatches = 6 }
  profile {
    forward = 0  backward_input = -1
    backward_weight = 1.0005  reduce = 9999999999999999
  }
}
""",
    "batch-does-not-divide": job_text(batch="batch { global = 1000  micro = 7 }"),
    "absurd-sizes": job_text(
        parallel="parallel { pipeline = 4096  data = 4096  tensor = 8 }",
        profile=f"profile {{ forward = {'9' * 32}  backward_input = x  backward_weight = 1 }}",
        tolerate="tolerate { failures = 1000% }",
        solver="solver { seed = 4294967296  time_limit = 0 s }",
    ),
    "too-many-failures": job_text(tolerate="tolerate { failures = 9 }"),
    "memory-too-small": job_text(memory="memory { capacity = [4, 3, 0.999, 1] }"),
    "model": job_text(
        "model gpt { layers = 3  hidden = 4096  heads = 30  sequence = 2048 }",
        "device a10",
        profile="",
        batch="batch { microbatches = 6 }",
    ),
    "model-too-large": job_text(
        GPT,
        "device a100",
        profile="",
        batch="batch { microbatches = 6  micro = 4 }",
        memory="memory { capacity = 16 GiB }",
    ),
    "layers": """\
job x {
  parallel { pipeline = 4  data = 3  cut = [3, 3, 3] }
  batch { microbatches = 6 }
  layers {
    count = 12  unit = ms
    forward = [0.3, 9 * 1, 2]  backward_input = 2 slot  backward_weight = [0 * 1, 12]
    activation = 2  kept_for_weight = [11 * 1, 3]
    parameters = 3  resident = 1 ms  capacity = 4
  }
}
""",
    "layers-without-number": """\
job x {
  parallel { pipeline = 4  data = 3 }
  batch { microbatches = 6 }
  layers { forward = 1  backward_input = 1 }
  profile { forward = 1  backward_input = 1  backward_weight = 1 }
}
""",
    "repeats": """\
job x {
  parallel { pipeline = 4  data = 3 }
  batch { microbatches = 6 }
  profile {
    forward = 4 * 1
    backward_input = [4 *]
    backward_weight = [ms * 3]
  }
}
""",
    "cut": job_text(
        LAYERS, profile="", parallel="parallel { pipeline = 4  data = 3  cut = [9, 8, six, 5.5]  recut = of }"
    ),
    "groups": job_text(LAYERS, profile="", parallel="parallel { pipeline = 4  data = 3  groups = on }"),
    "cut-of-other-layers": job_text(
        LAYERS, profile="", parallel="parallel { pipeline = 4  data = 3  cut = [8, 8, 6, 6] }"
    ),
    "more-stages-than-layers": job_text(
        "layers { count = 3  forward = 1  backward_input = 1  backward_weight = 1 }", profile=""
    ),
    "whole-stages-cannot-be-recut": job_text(
        parallel="parallel { pipeline = 4  data = 3  cut = [7, 7, 7, 7]  recut = on }",
        tolerate="tolerate { failures = 1  redundancy = 2 }",
    ),
    "split-of-whole-stages": job_text(batch="batch { microbatches = 6  split = 4% }"),
    "split-without-recut": job_text(
        LAYERS,
        profile="",
        parallel="parallel { pipeline = 4  data = 3  recut = off }",
        batch="batch { microbatches = 6  split = auto }",
    ),
    "split-not-measured": job_text(LAYERS, profile="", batch="batch { microbatches = 6  split = auto }"),
    "split-no-share": job_text(LAYERS, profile="", batch="batch { microbatches = 6  split = 0.04 }"),
    "split-no-word": job_text(LAYERS, profile="", batch="batch { microbatches = 6  split = on }"),
    "workers-of-whole-stages": job_text(parallel="parallel { workers = 12 }"),
    "capacity-by-stage": job_text(LAYERS, profile="", memory="memory { capacity = [32, 32, 24, 24] }"),
    "redundancy": job_text(
        LAYERS,
        profile="",
        tolerate="tolerate { failures = 1  redundancy = 4 }",
        memory="memory { capacity = 99 }",
    ),
    "free": job_text(
        LAYERS,
        profile="",
        parallel="parallel { workers = 12  data = 3  cut = [30]  recut = off }",
        batch="batch { global = 1001  micro = 4 }",
        memory="memory { capacity = [8, 8] }",
    ),
    "free-too-many-failures": job_text(
        LAYERS,
        profile="",
        parallel="parallel { workers = 12 }",
        memory="memory { capacity = 8 }",
        tolerate="tolerate { failures = 5  redundancy = 2 }",
    ),
    "free-redundancy": job_text(
        LAYERS,
        profile="",
        parallel="parallel { workers = 12 }",
        memory="memory { capacity = 8 }",
        tolerate="tolerate { failures = 0  redundancy = 4 }",
    ),
    "free-memory": job_text(
        LAYERS, profile="", parallel="parallel { workers = 12 }", memory="memory { capacity = 0.5 }"
    ),
    "free-few-microbatches": job_text(
        "layers { count = 2  forward = 1  backward_input = 1  backward_weight = 1 }",
        profile="",
        parallel="parallel { workers = 40 }",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_rendered(case: str, golden: Callable[[str, str], None]) -> None:
    error = errors_of(CASES[case], "x.job")
    golden(f"errors/{case}.txt", f"{error.render()}\nexit {error.exit_code}\n")


def test_profile_file(
    tmp_path: Path, golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = {"forward": 1, "backward_input": 1, "backward_weight": 1, "activation_bytes": 8}
    stages = [stage, {**stage, "forward": 0}, {**stage, "kept_bytes": 9}, {**stage, "reduce": 1.5}]
    profile = {"format": "recycle-profile", "version": 1, "device": "cpu", "unit": "ns", "stages": stages}
    (tmp_path / "p.json").write_text(json.dumps(profile))
    (tmp_path / "x.job").write_text(job_text(profile='profile from "p.json"'))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompileError) as caught:
        load_job("x.job")
    golden("errors/profile-file.txt", f"{caught.value.render()}\nexit {caught.value.exit_code}\n")
