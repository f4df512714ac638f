"""By hand: the safetensors package against ours.

    python tests/engine/files/interop_safetensors.py golden        write tests/golden/reference.safetensors with the reference writer
    python tests/engine/files/interop_safetensors.py check FILE    read FILE with the reference reader; list its tensors

Needs safetensors, torch and numpy; the product and its tests need none of them.
"""
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file

PATH = "tests/golden/reference.safetensors"
TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
         torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64]


def golden():
    """One tensor a type, value i % 2 + row, names that sort against the order of their types."""
    tensors = {}
    for i, kind in enumerate(TYPES):
        tensors[f"t{len(TYPES) - i:02d}"] = (torch.arange(6) % 2).to(kind).reshape(2, 3).contiguous()
    tensors["scalar"] = torch.tensor(1.5)
    tensors["empty"] = torch.zeros(0, 4)
    save_file(tensors, PATH, metadata={"format": "pt"})
    check(PATH)


def check(path):
    with safe_open(path, "pt") as f:
        print(path, f.metadata())
        for name in f.keys():
            tensor = f.get_tensor(name)
            print(f"  {name} {tensor.dtype} {list(tensor.shape)} {tensor.to(torch.float64).sum().item():.9g}")


if __name__ == "__main__":
    if sys.argv[1:] == ["golden"]:
        golden()
    elif len(sys.argv) == 3 and sys.argv[1] == "check":
        check(sys.argv[2])
    else:
        sys.exit(__doc__)
