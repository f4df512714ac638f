"""Makes the files of this folder: the same records by five writers of Parquet and as Arrow, in many ways, and as JSON lines.

    python tests/golden/parquet/make.py        (pip install pyarrow pandas polars duckdb fastparquet)

Each file's column "text" must give the documents of texts.jsonl, in order; nulls.* lists its nulls as bad records.
"""
import json
import os
import sys

import duckdb
import fastparquet
import pandas
import polars
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq

here = os.path.dirname(os.path.abspath(sys.argv[0]))
words = "alpha beta Größe naïve 東京 \U0001f600 \"quoted\" back\\slash tab\tend line\nend".split(" ")


def record(i):
    if i % 11 == 3:
        return ""
    return f"{i} " + " ".join(words[(i * 7 + k * k) % len(words)] for k in range(1 + i * i % 9))


texts = [record(i) for i in range(90)]
columns = {"id": list(range(90)), "text": texts, "tags": [["x"] * (i % 3) for i in range(90)],
           "source": [{"url": f"u{i}", "n": i} for i in range(90)], "score": [0.5 * i for i in range(90)]}
table = pa.table(columns)
flat = {"id": columns["id"], "text": texts}


def path(name):
    return os.path.join(here, name)


def lines(name, values):
    with open(path(name), "w", encoding="utf-8") as f:
        for t in values:
            f.write(json.dumps({"text": t}) + "\n")


lines("texts.jsonl", texts)
# pyarrow: packings, pages of both versions, dictionaries, several row groups, pages of a few rows
plain = {"use_dictionary": False, "write_batch_size": 8, "data_page_size": 64}
pq.write_table(table, path("pyarrow-snappy.parquet"), compression="snappy")
pq.write_table(table, path("pyarrow-zstd-pages2.parquet"), compression="zstd", data_page_version="2.0", **plain)
pq.write_table(table, path("pyarrow-gzip-groups.parquet"), compression="gzip", row_group_size=17, **plain)
pq.write_table(table.select(["text"]), path("pyarrow-lz4-checksums.parquet"), compression="lz4", write_page_checksum=True, **plain)
pq.write_table(table.select(["text"]), path("pyarrow-dictionary.parquet"), compression="brotli", use_dictionary=True, row_group_size=40)
for name in ("DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"):
    pq.write_table(table.select(["text"]), path(f"pyarrow-{name.lower()}.parquet"), column_encoding={"text": name}, **plain)
coded = table.select(["text"]).set_column(0, "text", table["text"].dictionary_encode())
pq.write_table(coded, path("pyarrow-coded.parquet"))
required = pa.schema([pa.field("text", pa.large_string(), nullable=False)])
pq.write_table(pa.table({"text": texts}).cast(required), path("pyarrow-required.parquet"), **plain)
pq.write_table(pa.table({"text": pa.array([t.encode() for t in texts], pa.binary())}), path("pyarrow-binary.parquet"))
# the others, as their users write
pandas.DataFrame(flat).to_parquet(path("pandas.parquet"))
fastparquet.write(path("fastparquet.parquet"), pandas.DataFrame(flat), compression="SNAPPY", row_group_offsets=[0, 31, 62])
polars.DataFrame(flat).write_parquet(path("polars.parquet"), row_group_size=32)
view = duckdb.connect()
view.register("texts", pa.table(flat))
view.execute(f"COPY (SELECT * FROM texts ORDER BY id) TO '{path('duckdb.parquet')}' (FORMAT parquet, CODEC zstd)")
# Arrow: a file, a stream, Feather; dictionaries, large strings, views; packed
for name, t in (("file", table), ("coded", coded), ("large", table.cast(table.schema.set(1, pa.field("text", pa.large_string()))))):
    with pa.ipc.new_file(path(f"pyarrow-{name}.arrow"), t.schema) as f:
        f.write_table(t.select(t.column_names), max_chunksize=90 if name == "coded" else 40)
with pa.ipc.new_stream(path("pyarrow-stream.arrow"), coded.schema) as f:
    f.write_table(coded, max_chunksize=40)
pyarrow.feather.write_feather(table, path("pyarrow-zstd.feather"), compression="zstd", chunksize=30)
polars.DataFrame(flat).write_ipc(path("polars-views.arrow"), compression="lz4")
# bad records: row 2 is null, row 4 no UTF-8; the file itself is sound
bad = [b"one", b"two", None, b"three", b"\xff\xfe", b"four"]
pq.write_table(pa.table({"text": pa.array(bad, pa.binary())}), path("nulls.parquet"), row_group_size=4)
with pa.ipc.new_file(path("nulls.arrow"), pa.schema([("text", pa.binary())])) as f:
    f.write_table(pa.table({"text": pa.array(bad, pa.binary())}))
