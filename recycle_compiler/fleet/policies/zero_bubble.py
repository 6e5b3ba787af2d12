"""Zero-bubble: our plan without failures on machines that never fail, which is what 100 % means."""

from recycle_compiler.fleet.our_periods import OurPeriods
from recycle_compiler.fleet.policies.unmoved import Unmoved
from recycle_compiler.fleet.setting import Setting


def make(setting: Setting) -> Unmoved:
    return Unmoved(
        "zero-bubble",
        "our plan without failures; nothing ever fails",
        setting.rate(OurPeriods(setting).healthy),
    )
