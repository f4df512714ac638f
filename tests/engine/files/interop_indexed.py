"""By hand: megatron-core's own indexed_dataset against ours, both ways.

    python tests/engine/files/interop_indexed.py golden          write tests/golden/megatron_*.{bin,idx} with Megatron's builder
    python tests/engine/files/interop_indexed.py check PREFIX    read PREFIX with Megatron's reader; print documents, tokens, sum of ids

Needs megatron-core, torch and numpy; the product and its tests need none of them.
"""
import sys

import numpy
import torch
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder


def golden():
    for name, vocabulary in (("megatron_u16", 50257), ("megatron_i32", 128256)):
        prefix = f"tests/golden/{name}"
        builder = IndexedDatasetBuilder(prefix + ".bin", dtype=DType.optimal_dtype(vocabulary))
        for document in range(5):
            length = (7, 1, 0, 20, 5)[document]
            tokens = [(document * 7919 + i * 104729) % vocabulary for i in range(length)]
            builder.add_document(torch.tensor(tokens, dtype=torch.int64), [length])
        builder.finalize(prefix + ".idx")
        check(prefix)


def check(prefix):
    data = IndexedDataset(prefix)
    total = sum(int(data[i].astype(numpy.int64).sum()) for i in range(len(data)))
    print(prefix, "dtype", data.index.dtype.__name__, "sequences", len(data), "documents", len(data.document_indices) - 1,
          "tokens", int(data.sequence_lengths.sum()), "sum of ids", total)


if __name__ == "__main__":
    if sys.argv[1:] == ["golden"]:
        golden()
    elif len(sys.argv) == 3 and sys.argv[1] == "check":
        check(sys.argv[2])
    else:
        sys.exit(__doc__)
