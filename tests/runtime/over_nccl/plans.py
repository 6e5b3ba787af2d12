"""Plans of the runs over NCCL: `python -m tests.runtime.over_nccl.plans DIR` makes all of them.

A machine with six devices may have no compiler: there RECYCLE_PLANS names the folder.
"""

import os
import subprocess
import sys
from pathlib import Path

VARIABLE = "RECYCLE_PLANS"
_PROFILE = """
  profile  {
    unit = ms  forward = 4  backward_input = 4  backward_weight = 4
    optimizer = 3  reduce = 3  transfer = 1  activation = 1  kept_for_weight = 1
  }
  memory   { capacity = 6 }"""
_LAYERS = """
  layers   {
    unit = slot  forward = 1  backward_input = 1  backward_weight = 1  parameters = 0.125 MiB  count ="""
_ALL = "techniques { adaptive  decouple  stagger }"
_SHARDED = "optimizer { state = sharded  owners = 2 }"
_EXPERTS = f"{_SHARDED}  experts {{ slots = 4  every = 1 }}"


def _job(name: str, shape: str, microbatches: int, costs: str, failures: int, techniques: str = _ALL) -> str:
    batch, tolerate = f"batch {{ microbatches = {microbatches} }}", f"tolerate {{ failures = {failures} }}"
    return f"job {name} {{\n  parallel {{ {shape} }}\n  {batch}{costs}\n  {techniques}\n  {tolerate}\n}}\n"


JOBS = {
    "staggered": _job("staggered", "pipeline = 2  data = 3", 4, _PROFILE, 4),
    "barrier": _job("barrier", "pipeline = 2  data = 3", 4, _PROFILE, 4, "techniques { adaptive  decouple }"),
    "sharded": _job("sharded", "pipeline = 2  data = 3", 4, _PROFILE, 4, f"{_ALL}\n  {_SHARDED}"),
    "sharded_barrier": _job(
        "barrier", "pipeline = 2  data = 3", 4, _PROFILE, 4, f"techniques {{ adaptive }}\n  {_SHARDED}"
    ),
    "experts": _job("experts", "pipeline = 2  data = 3", 4, _PROFILE, 4, f"{_ALL}\n  {_EXPERTS}"),
    "ranks": _job("ranks", "pipeline = 1  data = 3  tensor = 2", 4, f"{_LAYERS} 4 }}", 2),
    "distributed": _job("distributed", "pipeline = 1  data = 3  tensor = 2", 4, f"{_LAYERS} 5 }}", 2),
    "layered": _job("layered", "pipeline = 2  data = 3", 4, f"{_LAYERS} 6 }}", 2),
}


GROUPS = "3x2,3x2@10+6x1@2"
"""Of five workers: four as two pipelines, and one that holds all layers."""


def plan(name: str, folder: Path) -> str:
    """The file of a plan, made in the folder if it has to be."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        return str(Path(given) / f"{name}.plan")
    job, path = folder / f"{name}.job", folder / f"{name}.plan"
    if name == "groups":
        from tests.runtime.recovery.recut_plans import three_by_two, write_bundle

        return write_bundle(path, three_by_two(), {GROUPS: [(1, 1, 0)]})
    job.write_text(JOBS[name])
    recyclec = Path(sys.executable).parent / "recyclec"
    subprocess.run([str(recyclec), "--quiet", "compile", str(job), "-o", str(path)], check=True)
    return str(path)


if __name__ == "__main__":
    os.environ.pop(VARIABLE, None)
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    for each in (*JOBS, "groups"):
        print(plan(each, Path(sys.argv[1])))
