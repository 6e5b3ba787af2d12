"""The row of layers that other policies cut anew."""

import pytest

from recycle_compiler.diagnostics import CompileError
from recycle_compiler.fleet.policies.layers import MOST_BLOCKS, layer_costs_of
from recycle_compiler.fleet.policies.oobleck import Oobleck
from recycle_compiler.fleet.setting import Known, make_setting, read_said
from recycle_compiler.frontend.gpt_model import MOST_LAYERS
from recycle_compiler.frontend.load import parse_job_text
from tests.support.jobs import unit_job

MODEL = """job big {
  parallel  { pipeline = 2  data = 2 }
  batch     { microbatches = 2  micro = 1 }
  model gpt { layers = LAYERS  hidden = 64  heads = 1  sequence = 8  vocabulary = 8 }
  device    a100
  memory    { capacity = 80 GiB }
  tolerate  { failures = 1 }
}
"""


def test_few_layers_stay_as_they_are() -> None:
    setting = make_setting(unit_job(4, 3, 6), (), Known(layers=(2, 3, 4, 5)))
    assert len(layer_costs_of(setting)) == 14


def test_many_layers_become_blocks_within_stages() -> None:
    job = unit_job(3, 2, 4)
    row = layer_costs_of(make_setting(job, (), Known(layers=(MOST_LAYERS - 8, 7, 1))))
    assert len(row) == MOST_BLOCKS // 3 + 7 + 1
    assert sum(row.forward) == pytest.approx(sum(job.forward))
    first = MOST_BLOCKS // 3
    assert sum(row.forward[:first]) == pytest.approx(job.forward[0])
    assert sum(row.forward[first : first + 7]) == pytest.approx(job.forward[1])


def test_as_many_layers_as_a_job_may_have() -> None:
    source = MODEL.replace("LAYERS", str(MOST_LAYERS))
    layers = read_said(source).layers
    assert layers is not None and sum(layers) == MOST_LAYERS
    setting = make_setting(unit_job(2, 2, 2), (), Known(layers=layers))
    assert Oobleck(setting).begin(frozenset(), 0) > 0


def test_more_layers_are_refused_in_a_job_as_well() -> None:
    with pytest.raises(CompileError) as refused:
        parse_job_text(MODEL.replace("LAYERS", str(MOST_LAYERS + 1)), "big.job")
    assert "65,536" in str(refused.value.diagnostics[0])
