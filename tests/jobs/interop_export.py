#!/usr/bin/env python3
"""checkpoint.export and transformers; run by hand from the top folder, in the environment of `make peers`:

    $PYTHON tests/jobs/interop_export.py

Runs of several layouts export while they train; transformers loads each folder without a warning, and finds the loss that
phalanx's eval finds of the checkpoint of that step, with the tokenizer that the folder holds. A run that is killed with SIGKILL
again and again leaves no export that is half there, and the start that comes to the end has them all. lm-eval-harness scores the last
export and continues text with it, and TRL trains it on.
"""
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import numpy
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

PHALANX = os.path.abspath(os.environ.get("PHALANX", "build/phalanx"))
MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
SEQUENCE = 64


class Warnings(logging.Handler):
    said = []

    def emit(self, record):
        if record.levelno >= logging.WARNING:
            self.said.append(record.getMessage())


def command(top, ranks, words):
    return (MPIRUN + [str(ranks)] if ranks > 1 else []) + [PHALANX, "train", f"{top}/run.yaml", *words]


def loss_of(folder, text):
    """Mean loss of windows of SEQUENCE tokens, as phalanx eval has them."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    windows = torch.tensor([ids[i:i + SEQUENCE + 1] for i in range(0, len(ids) - SEQUENCE - 1, SEQUENCE)])
    with torch.no_grad():
        logits = model(windows[:, :-1]).logits
    return ids, torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item()


def check(top, folder, steps):
    exports = sorted(n for n in os.listdir(f"{folder}/exports") if n != "latest")
    assert exports == [f"step-{s:08d}" for s in steps], exports
    assert os.readlink(f"{folder}/exports/latest") == exports[-1]
    text = open(f"{top}/held.txt").read()
    for name in exports:
        card = open(f"{folder}/exports/{name}/README.md").read()
        assert f"| steps | {int(name[5:])} of" in card and "text |" in card and "training loss" in card, card
        ids, theirs = loss_of(f"{folder}/exports/{name}", text)
        assert ids == numpy.fromfile(f"{top}/held.bin", dtype=numpy.uint16).tolist()
        done = subprocess.run([PHALANX, "eval", "--checkpoint", f"{folder}/checkpoints/{name}", "--data", f"{top}/held",
                               "--sequence", str(SEQUENCE), "--limit", str(len(ids) // SEQUENCE * SEQUENCE), "--json"],
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        ours = yaml.safe_load(done.stdout)["loss"]
        assert abs(theirs - ours) < 2e-5 * ours, (theirs, ours)
    said = [w for w in Warnings.said if "longer than the specified maximum" not in w]  # the text is
    assert not said, said


def layouts(top):
    rows = {"one": (1, []), "tensor-zero3": (4, ["parallel.tensor=2", "parallel.data=2", "parallel.zero=3"]),
            "pipeline": (4, ["parallel.pipeline=2", "parallel.data=2", "parallel.zero=1", "model.tied_embeddings=true"]),
            "expert": (2, ["model.architecture=olmoe", "model.experts=4", "parallel.expert=2"])}
    for name, (ranks, words) in rows.items():
        words = [f"run.folder={top}/{name}", "checkpoint.keep=0", "train.steps=8", *words]
        done = subprocess.run(command(top, ranks, words), capture_output=True, text=True, env=ENVIRONMENT)
        assert done.returncode == 0, done.stderr
        check(top, f"{top}/{name}", [3, 6, 8])
        print(f"ok {name}: steps 3, 6, 8")


def killed(top):
    folder, kills = f"{top}/killed", 0
    words = [f"run.folder={folder}", "checkpoint.keep=1", "train.steps=240", "checkpoint.export.every=6", "checkpoint.every=3"]
    end = time.time() + 90
    while time.time() < end and kills < 12:
        run = subprocess.Popen(command(top, 1, words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT,
                               start_new_session=True)
        time.sleep(0.1 + 0.5 * random.random())
        if run.poll() is not None:
            break
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        kills += 1
        for name in os.listdir(f"{folder}/exports") if os.path.isdir(f"{folder}/exports") else []:
            if name.startswith("step-") and "." not in name[5:]:
                loss_of(f"{folder}/exports/{name}", open(f"{top}/held.txt").read())
    done = subprocess.run(command(top, 1, words), capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    left = sorted(n for n in os.listdir(f"{folder}/exports") if n != "latest")
    assert all("." not in n[5:] for n in left) and left[-1] == "step-00000240", left
    print(f"ok killed: {kills} times; {len(left)} exports of 40, each of which loads")
    for name in left:
        loss_of(f"{folder}/exports/{name}", open(f"{top}/held.txt").read())


def others(top):
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer
    folder, text = f"{top}/one/exports/latest", open(f"{top}/held.txt").read()
    lm = HFLM(pretrained=folder, device="cpu", batch_size=1)
    scores = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0)])
    told = lm.generate_until([Instance("generate_until", {}, ("The", {"until": ["#"], "max_gen_toks": 8}), 0)])
    assert -1e5 < scores[0] < 0 and isinstance(told[0], str), (scores, told)
    rows = Dataset.from_list([{"text": t} for t in text.split("\n\n")])
    words = {"output_dir": f"{top}/sft", "max_steps": 3, "max_length": SEQUENCE, "report_to": [], "use_cpu": True, "bf16": False}
    trainer = SFTTrainer(model=folder, train_dataset=rows, args=SFTConfig(**words))
    assert 0 < trainer.train().training_loss < 10
    print("ok others: lm-eval-harness, TRL")


def main():
    random.seed(1)
    logging.getLogger("transformers").addHandler(Warnings())
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    top = tempfile.mkdtemp(prefix="phalanx-export-")
    try:
        shutil.copy("README.md", f"{top}/text.txt")
        shutil.copy("engine/README.md", f"{top}/held.txt")
        subprocess.run([PHALANX, "tokenize", "--quiet", "--output", f"{top}/text", "--tokenizer", f"{top}/t.model",
                        "--train-vocab", "400", "--train-type", "bpe", f"{top}/text.txt"], check=True)
        subprocess.run([PHALANX, "tokenize", "--quiet", "--output", f"{top}/held", "--tokenizer", f"{top}/t.model",
                        "--append-eod", "no", f"{top}/held.txt"], check=True)
        with open(f"{top}/run.yaml", "w") as file:
            yaml.safe_dump({"model": {"layers": 2, "hidden_size": 64, "heads": 4},
                            "data": {"train": f"{top}/text", "validation": f"{top}/text"},
                            "train": {"sequence": SEQUENCE, "micro_batch": 2, "global_batch": 8, "device": "cpu", "threads": 1,
                                      "precision": "fp32"},
                            "checkpoint": {"every": 4, "export": {"every": 3}},
                            "evaluate": {"every": 3, "batches": 1}, "run": {"tensorboard": False}}, file)
        layouts(top)
        others(top)
        killed(top)
        print("ok")
    finally:
        shutil.rmtree(top, ignore_errors=True)


if __name__ == "__main__":
    main()
