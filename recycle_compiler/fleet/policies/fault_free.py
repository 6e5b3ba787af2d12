"""Fault-free: 1F1B on machines that never fail, what the job would do today on a perfect fleet."""

from recycle_compiler.fleet.policies.unmoved import Unmoved
from recycle_compiler.fleet.setting import Setting


def make(setting: Setting) -> Unmoved:
    return Unmoved("fault-free", "1F1B; nothing ever fails", setting.rate(setting.one_f_one_b))
