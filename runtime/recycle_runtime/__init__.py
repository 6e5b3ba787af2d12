"""Trains with compiled plans, and goes on when workers fail.

    import recycle_runtime as recycle

    trainer = recycle.Trainer(layers, loss=..., optimizer=...)

Public names are loaded when they are first used: importing this package alone takes no time, and no torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recycle_runtime.checkpoint.whole_model import CheckpointReader as CheckpointReader
    from recycle_runtime.checkpoint.whole_model import CheckpointWeights as CheckpointWeights
    from recycle_runtime.data.batches import Batches as Batches
    from recycle_runtime.experts.mixture import MixtureOfExperts as MixtureOfExperts
    from recycle_runtime.experts.sharing import share_experts as share_experts
    from recycle_runtime.trainer.report import Report as Report
    from recycle_runtime.trainer.trainer import SaveError as SaveError
    from recycle_runtime.trainer.trainer import Trainer as Trainer
    from recycle_runtime.transport.rank_mesh import mesh as mesh

_PUBLIC = {
    "Trainer": "recycle_runtime.trainer.trainer",
    "SaveError": "recycle_runtime.trainer.trainer",
    "CheckpointWeights": "recycle_runtime.checkpoint.whole_model",
    "CheckpointReader": "recycle_runtime.checkpoint.whole_model",
    "Report": "recycle_runtime.trainer.report",
    "Batches": "recycle_runtime.data.batches",
    "MixtureOfExperts": "recycle_runtime.experts.mixture",
    "share_experts": "recycle_runtime.experts.sharing",
    "mesh": "recycle_runtime.transport.rank_mesh",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
