"""The seed corpora of the fuzzers, a folder each: python3 tests/golden/fuzz/make.py, from the top.

Small files that each reader accepts, so that a fuzzer begins behind the first checks and not before them.
"""
import json
import pathlib
import struct

top = pathlib.Path("tests/golden/fuzz")


def put(fuzzer, name, data):
    folder = top / fuzzer
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


for path in sorted(pathlib.Path("tests/golden/models").glob("*/config.json")):
    put("fuzz_huggingface", path.parent.name, path.read_bytes())

for path in ["demo", "gpt2-124m", "llama-8b-64gpu"]:
    text = pathlib.Path(f"models/configs/{path}.yaml").read_bytes()
    put("fuzz_config", path, b"\0" + text)
put("fuzz_config", "overrides", b"\2model: {preset: llama-15m}\ntrain.steps=3\noptimizer.lr=1e-3\n")

header = {"__metadata__": {"format": "pt", "run": "0123"},
          "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
          "b": {"dtype": "BF16", "shape": [], "data_offsets": [24, 26]},
          "c": {"dtype": "U8", "shape": [0, 7], "data_offsets": [26, 26]}}
text = json.dumps(header, separators=(",", ":")).encode()
put("fuzz_safetensors", "header", bytes([1, 26]) + text)
put("fuzz_safetensors", "file", bytes([0, 0]) + struct.pack("<Q", len(text)) + text + bytes(26))

sequences = struct.pack("<BQQ", 4, 2, 3) + struct.pack("<ii", 3, 5) + struct.pack("<qq", 0, 12) + struct.pack("<qqq", 0, 1, 2)
put("fuzz_indexed", "two", bytes([1, 32]) + sequences)
whole = b"MMIDIDX\0\0" + struct.pack("<Q", 1) + sequences
put("fuzz_indexed", "whole", bytes([0, 32]) + whole)
narrow = struct.pack("<BQQ", 8, 1, 2) + struct.pack("<i", 4) + struct.pack("<q", 0) + struct.pack("<qq", 0, 1)
put("fuzz_indexed", "narrow", bytes([1, 8]) + narrow)

piece = '{"start":[%d,0],"size":[2,3],"file":%d,"offset":64,"bytes":24,"crc32c":"89abcdef"}'
manifest = ('{"format":"phalanx checkpoint","version":1,"ranks":2,"run":"0123",\n"meta":{"step":1},\n"files":[\n'
            '{"name":"model-00000.safetensors","bytes":88,"crc32c":"01234567"},\n'
            '{"name":"model-00001.safetensors","bytes":88}\n],\n"tensors":[\n{"section":"model","name":"w",'
            '"dtype":"fp32","shape":[4,3],"pieces":[\n  ' + piece % (0, 0) + ",\n  " + piece % (2, 1) + "]}\n],\n")
put("fuzz_manifest", "two", manifest.encode())

fragments = []
for rank in range(2):
    text = f"file 88 01234567 model-0000{rank}.safetensors\n"
    if rank == 0:
        text += "tensor fp32 1 4 master norm.weight\npiece 0 40 16 0badcafe 0 4\n"
    text += f"tensor fp32 2 4 3 model w\npiece 0 64 24 89abcdef {2 * rank} 0 2 3\n"
    fragments.append(text.encode())
put("fuzz_fragment", "two", struct.pack("<H", len(fragments[0])) + fragments[0] + fragments[1])

vocabulary = {c: i for i, c in enumerate("abcdefghijklmnopqrstuvwxyz' \u0120\u010a")}
for merged in ["th", "the", "in", "ing", "\u0120the"]:
    vocabulary[merged] = len(vocabulary)
tokenizer = {"version": "1.0", "added_tokens": [{"id": len(vocabulary), "content": "<|endoftext|>", "special": True}],
             "normalizer": {"type": "NFC"},
             "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
             "decoder": {"type": "ByteLevel"},
             "model": {"type": "BPE", "dropout": None, "unk_token": None, "vocab": vocabulary,
                       "merges": ["t h", "th e", "i n", "in g", "\u0120 the"]}}
put("fuzz_tokenizer", "bytes.json", b"\0" + json.dumps(tokenizer, ensure_ascii=False).encode())
tokenizer["added_tokens"] = []
tokenizer["model"].update(vocab={"z": 0}, merges=[])  # the first words have no token at all
put("fuzz_tokenizer", "none.json", b"\0" + json.dumps(tokenizer).encode())
model = pathlib.Path("tests/golden/text/mapped.model").read_bytes()
put("fuzz_tokenizer", "mapped.model", b"\1" + model)

reply = struct.pack("<IHBBQQQQQQII", 0x49584850, 1, 0, 3, 0, 1, 2, 5, 9, 0, 3, 4) + b"data"
put("fuzz_islands", "reply", b"\0" + reply)
pairs = [("head", {"merge": 1, "step": 20, "updates": 20, "parts": [{"slot": 0, "offer": 20, "tokens": 5, "name": "a"}]}),
         ("member/0", {"name": "a", "key": "k", "ranks": 1, "endpoints": ["tcp://h:1"], "ready": True, "merge": 1}),
         ("offer/0", {"merge": 2, "offer": 40, "tokens": 9}), ("have/0", {"merge": 2, "slots": [0]})]
live = {"reached": True, "settled": 3, "pairs": [{"key": k, "value": v, "revision": 4} for k, v in pairs]}
put("fuzz_islands", "roster", b"\1" + json.dumps(live, separators=(",", ":")).encode())
put("fuzz_islands", "topk", b"\x12" + bytes(range(200)))
