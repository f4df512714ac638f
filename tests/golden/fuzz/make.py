"""The seed corpora of the fuzzers, a folder each: python3 tests/golden/fuzz/make.py, from the top.

Small files that each reader accepts, so that a fuzzer begins behind the first checks and not before them.
"""
import base64
import gzip
import json
import lzma
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

incident = (b'{"time": 1.5, "verdict": "frozen", "phase": "step", "rank": 1, "host": "node7", "step": 12, "words": "it waits", '
            b'"ends": true}\n')
metrics = b'{"step": 1, "loss": 4.5, "grad_norm": 1.25, "lr": 0.001, "tokens_per_second": 10, "step_seconds": 0.5}\n' * 2
put("fuzz_run", "incidents", b"\0" + metrics + incident.ljust(len(metrics), b" "))
put("fuzz_run", "hosts", b"\1node1 slots=8\n# a spare\nnode2.cluster slots=4\n")
put("fuzz_run", "choices", b"\2" + json.dumps({
    "choices": [{"key": "gemm a", "value": "3", "microseconds": 1.5}],
    "reserve": [{"device": "H100", "communicators": 2, "bytes": 4096}]}).encode())
put("fuzz_run", "meta", b"\3" + json.dumps({
    "step": 4, "updates": 3, "samples": 16, "good_steps": 0, "skipped": 1, "stage_step": 0, "stage_samples": 0, "schedule_step": 0,
    "schedule_updates": 0, "loss_scale": 0.0, "began": 0, "omitted": [[2, 8, 4, 1]],
    "losses": [4.5, 4.25], "norms": [1.0, 1.5], "data": {"train": [{"path": "x", "tokens": 9}], "validation": []}}).encode())
put("fuzz_run", "page", b"\4" + metrics + b'{"step": 2, "eval_loss": 4.25}\n' + incident)
put("fuzz_run", "index", b"\5" + json.dumps({"metadata": {"total_size": 8}, "weight_map": {"a": "model-00001.safetensors"}}).encode())
put("fuzz_run", "lock", b"\6" + json.dumps({"run": "0123", "host": "node7", "pid": 7, "started": 9, "boot": "a", "space": "b",
                                            "beat": 1000000000001}).encode())

lines = b'{"text": "one"}\n{"id": 2, "text": "t\\u00e9 \\ud83d\\ude00"}\n'
put("fuzz_documents", "text", b"\1one\n\ntwo\n")
put("fuzz_documents", "lines", b"\2" + lines)
put("fuzz_documents", "separated", b"\11one\n\ntwo\n\n\n\nthree")
put("fuzz_documents", "gzip", b"\0" + gzip.compress(lines, mtime=0))
put("fuzz_documents", "xz", b"\0" + lzma.compress(lines))

reply = struct.pack("<IHBBQQQQQQII", 0x49584850, 1, 0, 3, 0, 1, 2, 5, 9, 0, 3, 4) + b"data"
put("fuzz_islands", "reply", b"\0" + reply)
pairs = [("head", {"merge": 1, "step": 20, "updates": 20, "parts": [{"slot": 0, "offer": 20, "tokens": 5, "name": "a"}]}),
         ("member/0", {"name": "a", "key": "k", "ranks": 1, "endpoints": ["tcp://h:1"], "ready": True, "merge": 1}),
         ("offer/0", {"merge": 2, "offer": 40, "tokens": 9}), ("have/0", {"merge": 2, "slots": [0]})]
live = {"reached": True, "settled": 3, "pairs": [{"key": k, "value": v, "revision": 4} for k, v in pairs]}
put("fuzz_islands", "roster", b"\1" + json.dumps(live, separators=(",", ":")).encode())

# what etcd answers, keys and values in base64
place = "phalanx/r/live/"
kept = {
    place + "member/3": {"id": "x", "name": "n", "key": "k", "ranks": 1, "endpoints": ["tcp://127.0.0.1:1"],
                         "ready": True, "merge": 3, "step": 9, "updates": 9},
    place + "offer/3": {"merge": 4, "offer": 8, "id": 7, "fragment": 0, "tokens": 9},
    place + "have/3": {"merge": 4, "slots": [0, 3]},
    place + "head": {"merge": 3, "step": 9, "updates": 9,
                     "parts": [{"slot": 3, "offer": 8, "tokens": 9, "name": "n"}]},
    "a": 1,
}
coded = [{"key": base64.b64encode(key.encode()).decode(),
          "value": base64.b64encode(json.dumps(value).encode()).decode(), "mod_revision": "5"}
         for key, value in kept.items()]
put("fuzz_islands", "answer", b"\7" + json.dumps({"kvs": coded}).encode())
put("fuzz_islands", "topk", b"\x12" + bytes(range(200)))
put("fuzz_store", "list", b"""<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><EncodingType>url</EncodingType><Contents><Key>a/b%20c</Key>
<ETag>&quot;781e5e245d69b566979b86e28d23f2c7&quot;</ETag><Size>10</Size></Contents><CommonPrefixes><Prefix>a/</Prefix>
</CommonPrefixes><IsTruncated>true</IsTruncated><NextContinuationToken>t&#43;&#x2F;</NextContinuationToken></ListBucketResult>""")
put("fuzz_store", "error", b"<Error><Code>SlowDown</Code><!-- x --><Message>a &lt; b</Message><Empty/></Error>")
