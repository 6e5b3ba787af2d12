"""Policies by name, each imported when it is asked for."""

from importlib import import_module
from typing import TYPE_CHECKING

from recycle_compiler.fleet.policy import Policy

if TYPE_CHECKING:
    # Loading it takes as long as the planner does, and the names are needed before that.
    from recycle_compiler.fleet.setting import Setting

NAMES = (
    "ours",
    "recycle",
    "oobleck",
    "bamboo",
    "varuna",
    "elastic",
    "restart",
    "fault-scaled",
    "fault-free",
    "zero-bubble",
)
"""In the order of tables."""
_FOLDER = "recycle_compiler.fleet.policies"


class MissingPolicyError(Exception):
    """The name is known, but there is no such policy in this version."""


def make_policy(name: str, setting: "Setting") -> Policy:
    """A policy that has seen nothing yet; CannotRunError where it cannot run the job."""
    module = f"{_FOLDER}.{name.replace('-', '_')}"
    try:
        loaded = import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise MissingPolicyError(f"policy {name} is not part of this version of recyclec") from None
    policy: Policy = loaded.make(setting)
    return policy
