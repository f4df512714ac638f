#!/usr/bin/env python3
"""The script of `phalanx report --wandb` and the package wandb, offline, read back by wandb's own records; run by hand from the
top folder, in an environment with wandb (pip install wandb):

    $PYTHON tests/jobs/interop_wandb.py

The script follows a run that is killed with SIGKILL and started again, is killed itself, and is started again: one id, and every
step with the losses of metrics.jsonl.
"""
import glob
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import yaml
from wandb.proto import wandb_internal_pb2

PHALANX = os.path.abspath(os.environ.get("PHALANX", "build/phalanx"))


def scan(path):
    """The records of a .wandb file: LevelDB's log format, behind 7 bytes; what its writer was killed in is left out."""
    with open(path, "rb") as file:
        data = file.read()
    at, whole = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack("<HB", data[at + 4:at + 7])
        if kind == 0 or at + 7 + length > len(data):
            return
        whole = (b"" if kind in (1, 2) else whole) + data[at + 7:at + 7 + length]  # full, first, middle, last
        at += 7 + length
        if kind in (1, 4):
            yield whole


def records(top):
    """Ids of all offline runs, and each step's train/loss and eval/loss in order."""
    ids, logged = set(), {"train/loss": [], "eval/loss": []}
    for path in sorted(glob.glob(f"{top}/wandb/offline-run-*/*.wandb"), key=os.path.getmtime):
        for data in scan(path):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "run":
                ids.add(record.run.run_id)
            if record.WhichOneof("record_type") == "history":
                values = {(i.key or ".".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item}
                for key in logged:
                    if key in values:
                        logged[key].append((values["step"], values[key]))
    return ids, logged


def main():
    top = tempfile.mkdtemp(prefix="phalanx-wandb-")
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": top, "OMP_NUM_THREADS": "1"}
    run = f"{top}/run"
    try:
        shutil.copy("README.md", f"{top}/text.txt")
        subprocess.run([PHALANX, "tokenize", "--quiet", "--output", f"{top}/text", "--tokenizer", "bytes", f"{top}/text.txt"],
                       check=True)
        with open(f"{top}/run.yaml", "w") as file:
            yaml.safe_dump({"model": {"layers": 2, "hidden_size": 64, "heads": 4},
                            "data": {"train": f"{top}/text", "validation": f"{top}/text"},
                            "train": {"steps": 1500, "sequence": 64, "micro_batch": 8, "global_batch": 8, "device": "cpu",
                                      "threads": 1, "precision": "fp32"},
                            "checkpoint": {"every": 50}, "evaluate": {"every": 50, "batches": 1},
                            "run": {"folder": run, "tensorboard": False, "log_every": 100}}, file)

        def train():
            return subprocess.Popen([PHALANX, "train", f"{top}/run.yaml"], stdout=subprocess.DEVNULL, env=environment)

        def follow():
            return subprocess.Popen([sys.executable, f"{top}/send.py", "--follow"], cwd=top, env=environment,
                                    stdout=subprocess.DEVNULL, start_new_session=True)

        first = train()
        while not os.path.exists(f"{run}/metrics.jsonl"):
            time.sleep(0.1)
        subprocess.run([PHALANX, "report", run, "--wandb", f"{top}/send.py"], check=True, stdout=subprocess.DEVNULL)
        script = follow()
        while not os.path.exists(f"{run}/wandb.json") or not glob.glob(f"{top}/wandb/offline-run-*/*.wandb"):
            time.sleep(0.1)
        first.kill()
        first.wait()
        os.killpg(script.pid, signal.SIGKILL)
        script.wait()
        second, script = train(), follow()
        assert second.wait(timeout=600) == 0
        assert script.wait(timeout=600) == 0
        ids, logged = records(top)
        lines = [json.loads(x) for x in open(f"{run}/metrics.jsonl")]
        losses = {x["step"]: x["loss"] for x in lines if "loss" in x}
        held = {x["step"]: x["eval_loss"] for x in lines if "eval_loss" in x}
        assert ids == {json.load(open(f"{run}/wandb.json"))["id"]}, ids
        there = dict(logged["eval/loss"])
        assert dict(logged["train/loss"]) == losses, set(losses) ^ set(dict(logged["train/loss"]))
        assert there == held, {s: (there.get(s), held.get(s)) for s in {*there, *held} if there.get(s) != held.get(s)}
        twice = len(logged["train/loss"]) - len(losses)
        print(f"ok: one id, {len(losses)} steps and {len(held)} evaluations, {twice} of the steps twice with the same value")
    finally:
        shutil.rmtree(top, ignore_errors=True)


if __name__ == "__main__":
    main()
