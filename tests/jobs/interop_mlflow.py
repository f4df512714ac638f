#!/usr/bin/env python3
"""phalanx and a real MLflow server, read back by MLflow's own client; run by hand from the top folder, in an environment with
mlflow 3 (pip install mlflow):

    $PYTHON tests/jobs/interop_mlflow.py

A run trains while the server is killed and started again, is killed itself with SIGKILL, and goes on: one MLflow run has each
step's numbers once, as metrics.jsonl has them. A run that is stopped, one that fails, one whose configuration changes, one that
goes back over its steps with another learning rate, and one whose server comes only when it is done.
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import mlflow
import yaml

PHALANX = os.path.abspath(os.environ.get("PHALANX", "build/phalanx"))
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


class Server:
    def __init__(self, top):
        self.top, self.process = top, None
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"

    def start(self):
        log = open(f"{self.top}/server.log", "a")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{self.top}/store.db",
             "--default-artifact-root", f"{self.top}/artifacts", "--host", "127.0.0.1", "--port", str(self.port),
             "--workers", "1"], stdout=log, stderr=log, start_new_session=True)
        for _ in range(120):
            try:
                urllib.request.urlopen(self.address + "/health", timeout=2).read()
                return
            except OSError:
                time.sleep(0.5)
        raise SystemExit("the server does not start")

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def train(top, *words, wait=True):
    command = [PHALANX, "train", f"{top}/run.yaml", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=top, env=ENVIRONMENT)
    if not wait:
        return process
    said = process.communicate(timeout=600)[0]
    return process.returncode, said


def lines(folder):
    try:
        return [json.loads(line) for line in open(f"{folder}/metrics.jsonl", encoding="utf-8") if line.endswith("\n")]
    except FileNotFoundError:
        return []


def wait_for(condition, what, seconds=300):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end, what
        time.sleep(0.1)


def steps_of(folder):
    return max([line["step"] for line in lines(folder) if "loss" in line], default=0)


def run_of(client, name):
    experiment = client.get_experiment_by_name("phalanx")
    runs = [r for r in client.search_runs([experiment.experiment_id]) if r.info.run_name == name] if experiment else []
    assert len(runs) == 1, f"{len(runs)} runs are named {name}"
    return runs[0]


def arrived(client, name, steps):
    """Has the server so many steps of the run?"""
    try:
        return run_of(client, name).data.metrics.get("train/tokens", 0) >= steps * 8 * 64
    except AssertionError:
        return False


def history(client, run, key):
    return [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, key)]


def check(client, top, name, status, steps):
    """Each step once, and equal to the file."""
    run, folder = run_of(client, name), f"{top}/{name}"
    assert run.info.status == status, f"{name}: {run.info.status}"
    for key, where in {"train/loss": "loss", "train/grad_norm": "grad_norm", "train/lr": "lr",
                       "seconds/step": "step_seconds"}.items():
        there = sorted(history(client, run, key))
        assert [s for s, _ in there] == list(range(1, steps + 1)), f"{name}: {key} has steps {[s for s, _ in there]}"
        if key == "seconds/step":
            continue
        mine = sorted((line["step"], line[where]) for line in lines(folder) if "loss" in line)
        assert there == mine, f"{name}: {key} differs from metrics.jsonl"
    mine = sorted((line["step"], line["eval_loss"]) for line in lines(folder) if "eval_loss" in line)
    assert sorted(history(client, run, "eval/loss")) == mine and mine, f"{name}: eval/loss"
    print(f"ok {name}: {status}, {steps} steps of {len(run.data.metrics)} metrics, {len(run.data.params)} parameters")
    return run


def flat(tree, before=""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, before + key + ".")
        else:
            yield before + key, value


def killed(server, client, top):
    """The server twice, the training once, all with SIGKILL."""
    folder, words = f"{top}/killed", (f"run.folder={top}/killed", "checkpoint.every=150")
    first = train(top, *words, "train.steps=1000000", wait=False)
    wait_for(lambda: arrived(client, "killed", 60), "60 steps on the server")
    server.kill()
    at = steps_of(folder)
    wait_for(lambda: steps_of(folder) >= at + 60, "60 steps without a server")
    server.start()
    wait_for(lambda: arrived(client, "killed", at + 60), "the gap is filled")
    assert first.poll() is None, "the run has ended too early: give it more steps"
    first.kill()
    first.wait()
    left = steps_of(folder)
    assert run_of(client, "killed").info.status == "RUNNING"
    print(f"   killed after step {left}; {server.kill() or 'the server too'}")  # and the next start finds none
    steps = left + 400
    second = train(top, *words, f"train.steps={steps}", wait=False)
    wait_for(lambda: steps_of(folder) >= left + 20, "steps of the second start")
    server.start()
    said = second.communicate(timeout=600)[0]
    assert second.returncode == 0, said
    if "the same command again sends the rest" in said:  # a slow machine
        code, said = train(top, *words, f"train.steps={steps}")
        assert code == 0 and "sends the rest" not in said, said
    run = check(client, top, "killed", "FINISHED", steps)
    expected = dict(flat(yaml.safe_load(open(f"{folder}/config.yaml"))))
    assert run.data.params["train.steps"] == "1000000" and run.data.tags["train.steps"] == str(steps)
    assert set(expected) <= set(run.data.params), set(expected) - set(run.data.params)
    print("   second start:", json.load(open(f"{folder}/summary.json"))["mlflow"])


def stopped(client, top):
    folder, words = f"{top}/stopped", (f"run.folder={top}/stopped", "train.steps=400")
    first = train(top, *words, wait=False)
    wait_for(lambda: arrived(client, "stopped", 20), "20 steps on the server")
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=120) == 75
    assert run_of(client, "stopped").info.status == "KILLED"
    code, said = train(top, *words, "optimizer.weight_decay=0.05")
    assert code == 0, said
    run = check(client, top, "stopped", "FINISHED", 400)
    assert run.data.params["optimizer.weight_decay"] == "0.1" and run.data.tags["optimizer.weight_decay"] == "0.05"


def failed(client, top):
    code, said = train(top, f"run.folder={top}/failed", "train.steps=50", "train.max_skipped=3", "optimizer.lr=1000",
                       "optimizer.clip=0", "train.precision=fp16", "train.loss_scale=4294967296")
    assert code == 1, said
    assert run_of(client, "failed").info.status == "FAILED"
    print("ok failed: FAILED")


def again_otherwise(client, top):
    """Steps done again with another result: the server has both, as MLflow removes none."""
    folder, words = f"{top}/again", (f"run.folder={top}/again", "train.steps=300", "checkpoint.every=100")
    first = train(top, *words, wait=False)
    wait_for(lambda: arrived(client, "again", 110), "110 steps on the server")
    first.kill()
    first.wait()
    code, said = train(top, *words, "optimizer.lr=1e-3")
    assert code == 0, said
    there = history(client, run_of(client, "again"), "train/loss")
    last = [line["loss"] for line in sorted((x for x in lines(folder) if "loss" in x), key=lambda x: x["step"])]
    assert all(sum(s == step for s, _ in there) <= 2 for step in range(1, 301))
    assert all((step, loss) in there for step, loss in enumerate(last, 1))
    assert len(there) > 300
    print(f"ok again: {len(there) - 300} steps twice, each with its own result")


def late(server, client, top):
    server.kill()
    began = time.time()
    code, said = train(top, f"run.folder={top}/late", "train.steps=200")
    assert code == 0 and "the same command again sends the rest" in said, said
    assert said.count("MLflow at ") == 2, said  # once that it is away, once at the end
    print(f"   without a server: {time.time() - began:.1f} s, of which at most 20 for the end")
    server.start()
    code, said = train(top, f"run.folder={top}/late", "train.steps=200")
    assert code == 0, said
    check(client, top, "late", "FINISHED", 200)


def main():
    top = tempfile.mkdtemp(prefix="phalanx-mlflow-")
    server = Server(top)
    try:
        with open(f"{top}/text.txt", "w") as file:
            file.write(open("README.md").read() * 4)
        subprocess.run([PHALANX, "tokenize", "--quiet", "--output", f"{top}/text", "--tokenizer", "bytes", f"{top}/text.txt"],
                       check=True)
        with open(f"{top}/run.yaml", "w") as file:
            yaml.safe_dump({"model": {"layers": 2, "hidden_size": 64, "heads": 4},
                            "data": {"train": f"{top}/text", "validation": f"{top}/text"},
                            "train": {"sequence": 64, "micro_batch": 8, "global_batch": 8, "device": "cpu", "threads": 1,
                                      "precision": "fp32"},
                            "optimizer": {"warmup": 10, "schedule": "constant"}, "evaluate": {"every": 50, "batches": 1},
                            "run": {"mlflow": server.address, "log_every": 100}}, file)
        server.start()
        client = mlflow.MlflowClient(server.address)
        print(f"MLflow {mlflow.__version__}")
        killed(server, client, top)
        stopped(client, top)
        failed(client, top)
        again_otherwise(client, top)
        late(server, client, top)
        print("ok")
    finally:
        if server.process:
            server.kill()
        shutil.rmtree(top, ignore_errors=True)


if __name__ == "__main__":
    main()
