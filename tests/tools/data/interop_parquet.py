#!/usr/bin/env python3
"""phalanx tokenize on Parquet and Arrow beside JSON lines.

    python tests/tools/data/interop_parquet.py [--megabytes 20] [build/phalanx]        correctness, by five writers
    python tests/tools/data/interop_parquet.py --bench [--megabytes 1000] [build/phalanx]   seconds and peak memory

Needs pyarrow, pandas, polars, duckdb and fastparquet (bench: pyarrow), and build/libphalanx_parquet.so. The text is what
this machine has of Python's sources, in documents of 1 to 8 KiB, each with a number of its own. Every file must give
byte for byte the data set that the same records give as JSON lines, whole and in three merged parts; and the memory that
a large file takes must not grow with the file.
"""
import argparse
import glob
import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq


def make_texts(megabytes):
    """Documents of real text, about so many MB of UTF-8."""
    random.seed(1)
    parts = []
    for path in sorted(glob.glob(sysconfig.get_paths()["stdlib"] + "/**/*.py", recursive=True)):
        with open(path, encoding="utf-8", errors="ignore") as f:
            text = f.read()
        while text:
            size = random.randint(1024, 8192)
            parts.append(text[:size])
            text = text[size:]
        if len(parts) > 20000:
            break
    total, number = 0, 0
    while total < megabytes * 1e6:
        text = f"{number} {parts[random.randrange(len(parts))]}"
        total += len(text.encode())
        number += 1
        yield text


def batches(texts, rows):
    batch = []
    for text in texts:
        batch.append(text)
        if len(batch) == rows:
            yield batch
            batch = []
    if batch:
        yield batch


# A small process in between: what a child has used counts from its parent's memory on.
MEASURE = """
import os, sys, time
start = time.monotonic()
_, status, used = os.wait4(os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ), 0)
print(time.monotonic() - start, used.ru_utime + used.ru_stime, used.ru_maxrss, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def run(program, *arguments):
    """Runs it; seconds, processor seconds, peak KiB of memory, and what it said."""
    done = subprocess.run([sys.executable, "-c", MEASURE, program, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    seconds, processor, peak = (float(word) for word in done.stderr.splitlines()[-1].split())
    return seconds, processor, int(peak), done.stdout


def same(a, b):
    return all(subprocess.run(["cmp", f"{a}.{end}", f"{b}.{end}"]).returncode == 0 for end in ("bin", "idx"))


def write_all(folder, texts):
    """The same records by five writers; names of the files."""
    import duckdb
    import fastparquet
    import pandas
    import polars
    table = pa.table({"id": list(range(len(texts))), "text": texts, "tags": [["a"]] * len(texts)})
    flat = table.select(["id", "text"])
    names = {}

    def take(name):
        names[name] = os.path.join(folder, name)
        return names[name]

    for codec in ("none", "snappy", "gzip", "zstd", "lz4", "brotli"):
        for version in ("1.0", "2.0"):
            pq.write_table(table, take(f"pyarrow-{codec}-{version}.parquet"), compression=codec, data_page_version=version,
                           use_dictionary=codec == "snappy", row_group_size=len(texts) // 3, write_page_checksum=True)
    for encoding in ("DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY", "PLAIN"):
        pq.write_table(flat, take(f"pyarrow-{encoding}.parquet"), use_dictionary=False, column_encoding={"text": encoding},
                       data_page_size=1 << 14)
    repeated = [texts[i % 50] for i in range(len(texts))]
    frame = pandas.DataFrame({"id": range(len(texts)), "text": texts})
    frame.to_parquet(take("pandas.parquet"))
    frame.to_parquet(take("pandas-fastparquet.parquet"), engine="fastparquet")
    for codec in ("SNAPPY", "ZSTD", "GZIP", None):
        fastparquet.write(take(f"fastparquet-{codec}.parquet"), frame, compression=codec, row_group_offsets=len(texts) // 4)
    for codec in ("zstd", "snappy", "lz4", "uncompressed"):
        polars.DataFrame({"id": range(len(texts)), "text": texts}).write_parquet(take(f"polars-{codec}.parquet"), compression=codec,
                                                                               row_group_size=1000)
    polars.DataFrame({"text": texts}).write_ipc(take("polars.arrow"), compression="zstd")
    polars.DataFrame({"text": texts}).write_ipc_stream(take("polars-stream.arrow"))
    base = duckdb.connect()
    base.register("t", flat)
    for codec in ("snappy", "zstd", "gzip", "uncompressed"):
        base.execute(f"COPY (SELECT * FROM t ORDER BY id) TO '{take(f'duckdb-{codec}.parquet')}' (FORMAT parquet, CODEC {codec})")
    base.execute(f"COPY (SELECT * FROM t ORDER BY id) TO '{take('duckdb-v2.parquet')}' (FORMAT parquet, PARQUET_VERSION v2)")
    pyarrow.feather.write_feather(table, take("pyarrow.feather"), chunksize=1000)
    coded = flat.set_column(1, "text", flat["text"].dictionary_encode())
    pq.write_table(coded, take("pyarrow-coded.parquet"))
    with pa.ipc.new_stream(take("pyarrow-coded.arrow"), coded.schema) as f:
        f.write_table(coded, max_chunksize=500)
    # dictionaries that stay dictionaries: few texts, many rows
    few = {}
    pq.write_table(pa.table({"text": repeated}), os.path.join(folder, "few.parquet"), data_page_version="2.0")
    few["few.parquet"] = os.path.join(folder, "few.parquet")
    fastparquet.write(os.path.join(folder, "few-fast.parquet"), pandas.DataFrame({"text": pandas.Categorical(repeated)}))
    few["few-fast.parquet"] = os.path.join(folder, "few-fast.parquet")
    return names, few, repeated


def write_lines(path, texts):
    with open(path, "w", encoding="utf-8") as f:
        for i, text in enumerate(texts):
            f.write(json.dumps({"id": i, "text": text}, ensure_ascii=False) + "\n")


def check(program, folder, megabytes):
    texts = list(make_texts(megabytes))
    names, few, repeated = write_all(folder, texts)
    out = os.path.join(folder, "rows")
    for files, records in ((names, texts), (few, repeated)):
        lines = os.path.join(folder, "lines.jsonl")
        write_lines(lines, records)
        run(program, "tokenize", "--force", "--output", folder + "/lines", "--tokenizer", "bytes", lines)
        for name, path in files.items():
            run(program, "tokenize", "--force", "--output", out, "--tokenizer", "bytes", path)
            assert same(folder + "/lines", out), f"{name} differs from its JSON lines"
            parts = [f"{out}-{i}" for i in (1, 2, 3)]
            for i in (1, 2, 3):
                run(program, "tokenize", "--force", "--part", f"{i}/3", "--output", parts[i - 1], "--tokenizer", "bytes", path)
            run(program, "merge", "--force", "--output", out, *parts)
            assert same(folder + "/lines", out), f"{name}: parts differ from the whole"
            print(f"ok {name}: {os.path.getsize(path)} bytes, {len(records)} documents")


def write_large(folder, megabytes):
    """The same text as Parquet (zstd, as pyarrow does by itself otherwise), Arrow and JSON lines, a batch at a time."""
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    names = [os.path.join(folder, n) for n in ("large.parquet", "large.arrow", "large.jsonl")]
    total = number = 0
    with pq.ParquetWriter(names[0], schema, compression="zstd") as parquet, pa.OSFile(names[1], "wb") as file, \
            pa.ipc.new_file(file, schema) as arrow, open(names[2], "w", encoding="utf-8") as lines:
        for group in batches(make_texts(megabytes), 50000):
            table = pa.table({"id": range(number, number + len(group)), "text": group}, schema=schema)
            parquet.write_table(table)
            arrow.write_table(table, max_chunksize=1000)
            for text in group:
                lines.write(json.dumps({"id": number, "text": text}, ensure_ascii=False) + "\n")
                number += 1
                total += len(text.encode())
    print(f"{1e-6 * total:.0f} MB of text, {number} documents; files of",
          ", ".join(f"{1e-6 * os.path.getsize(n):.0f} MB ({os.path.basename(n)})" for n in names))
    return names


def bench(program, folder, megabytes, tokenizers):
    for name in tokenizers:
        print(f"tokenizer {name}")
        least = {}  # peak KiB of the tenth, by file
        for size in (megabytes // 10, megabytes):
            files = write_large(folder, size)
            for path in [*files, *files[:1]]:  # the first again: what the machine does meanwhile
                seconds, processor, peak, said = run(program, "tokenize", "--force", "--output", folder + "/out", "--tokenizer", name, path)
                assert peak <= least.setdefault(path.rpartition("/")[2], peak) + (64 << 10), "memory grows with the file"
                digest = subprocess.run(["sha256sum", folder + "/out.bin"], capture_output=True, text=True).stdout[:12]
                print(f"  {size:5d} MB {os.path.basename(path):15s} {seconds:7.1f} s {processor:7.1f} s of processor {peak >> 10:5d} MiB  {digest}  {said.strip()}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", nargs="?", default="build/phalanx")
    parser.add_argument("--megabytes", type=int)
    parser.add_argument("--bench", action="store_true")
    parser.add_argument("--tokenizers", default="bytes,tests/golden/text/gpt2.json")
    o = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="phalanx-parquet-")
    try:
        if o.bench:
            bench(o.program, folder, o.megabytes or 1000, o.tokenizers.split(","))
        else:
            check(o.program, folder, o.megabytes or 20)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
