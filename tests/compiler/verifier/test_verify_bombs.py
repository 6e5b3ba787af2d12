"""Small files that stand for much work, and bundles whose source is another job's."""

import hashlib
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from recycle_compiler.cli.main import main
from recycle_compiler.verifier.plan import MOST_OF_A_KIND, cells, where
from recycle_compiler.verifier.report import VerifierRule
from recycle_compiler.verifier.verify import verify_plan
from recycle_runtime.plan.bundle import Bundle, join_bundle
from recycle_runtime.plan.bundle_index import ColumnLayout, Index
from recycle_runtime.plan.isa import Opcode
from tests.compiler.verifier.test_verify_bundle_file import written
from tests.compiler.verifier.tiny_plans import split_plan


def changed(bundle: Bundle, **changes: object) -> Bundle:
    index = Index(**{each.name: getattr(bundle, each.name) for each in fields(Index)})
    plans = [bundle.columns(number).data for number in range(len(bundle.plans))]
    return Bundle.parse(join_bundle(replace(index, **changes), plans))


def bomb(bundle: Bundle, instructions: int) -> Bundle:
    """Its first plan as so many forwards of one worker, all the same."""
    index = Index(**{each.name: getattr(bundle, each.name) for each in fields(Index)})
    lengths = (instructions, *(1 for _ in bundle.layouts[0].lengths[1:]))
    columns = bytes([Opcode.FORWARD + 1]) * sum(lengths) + bytes(6 * sum(lengths))
    layout = ColumnLayout((1,) * 7, lengths, hashlib.sha256(columns).digest())
    return Bundle.parse(join_bundle(replace(index, layouts=(layout,)), [columns]))


def test_a_plan_of_far_too_many_instructions_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle of 4 KB kept the verifier busy for minutes."""
    small = bomb(written(split_plan()), 3_000_000)
    assert sum(map(len, small.packed_plans)) < 50_000
    monkeypatch.setattr(Bundle, "columns", None)
    (violation,) = verify_plan(small, 0).violations
    assert violation.rule is VerifierRule.OP_COUNT and "found 3000002" in violation.message


def test_violations_of_one_kind_have_an_end() -> None:
    wrong = np.ones(5 * MOST_OF_A_KIND, dtype=np.bool_)
    assert len(list(where(wrong))) == len(list(cells(wrong.reshape(-1, 5)))) == MOST_OF_A_KIND


def test_a_reason_is_a_line_of_words() -> None:
    for reason in ("", "load\x1b[31m", "load of stage 2", "tail of stage 1 through stage 7", "a" * 2000):
        report = verify_plan(split_plan().with_entry(reason=reason), 0)
        assert [each.rule for each in report.violations] == [VerifierRule.CLAIM_REASON], reason
    assert verify_plan(split_plan().with_entry(reason="tail of stage 1 through stage 0"), 0).passed


def source_of(microbatches: int) -> str:
    plan = split_plan().job
    return f"""
job {plan.name} {{
  parallel {{ pipeline = {plan.stages}  data = {plan.pipelines} }}
  batch {{ microbatches = {microbatches} }}
  profile {{ unit = slot  forward = 1  backward_input = 1  backward_weight = 1  optimizer = 1 }}
}}
"""


def test_the_source_of_another_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plans on demand would have been for other micro-batches than those of the bundle."""
    bundle, path = written(split_plan()), tmp_path / "some.plan"
    own = bundle.microbatches
    for microbatches, is_same in ((own, True), (own + 1, False)):
        other = changed(bundle, job_source=source_of(microbatches))
        index = Index(**{each.name: getattr(other, each.name) for each in fields(Index)})
        path.write_bytes(join_bundle(index, [other.columns(0).data]))
        assert main(["verify", str(path)]) == (0 if is_same else 1), capsys.readouterr()
        said = capsys.readouterr().out
        assert ("index-source: the job has" in said) is not is_same
