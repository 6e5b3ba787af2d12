"""The text of a small job in layers whose own cut is far from the best."""

LAYERED = """\
job layered {
  parallel { pipeline = 2  data = 4  cut = [3, 3] }
  batch    { microbatches = 4 }
  layers   {
    unit = slot
    forward = [1, 1, 1, 1, 1, 3]
    backward_input = [1, 1, 1, 1, 1, 3]
    backward_weight = [1, 1, 1, 1, 1, 3]
    optimizer = 1
    activation = 1
    resident = 2
  }
  memory   { capacity = 24 }
  tolerate { failures = 2 }
}
"""
