"""By hand: what the tensorboard package reads in a folder of event files.

    python tests/engine/files/interop_tensorboard.py FOLDER

Needs tensorboard; the product and its tests do not.
"""
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

if len(sys.argv) != 2:
    sys.exit(__doc__)
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
tags = events.Tags()
for tag in tags["scalars"] + tags["tensors"]:
    values = events.Scalars(tag) if tag in tags["scalars"] else events.Tensors(tag)
    last = values[-1]
    value = last.value if tag in tags["scalars"] else last.tensor_proto.float_val[0]
    print(f"{tag}: {len(values)} values, last at step {last.step}: {value:.9g}")
