"""Sends runs of phalanx to Weights & Biases; `phalanx report RUN --wandb FILE.py` wrote this file.

    pip install wandb
    python3 FILE.py                       # or, without a network: WANDB_MODE=offline python3 FILE.py, and later `wandb sync`
"""

import json
import os

import wandb
import yaml  # of wandb's own requirements

RUNS = @RUNS@


def lines(path):
    """The lines that are whole; of a run that goes on the last may not be."""
    for line in open(path, encoding="utf-8"):
        if line.endswith("\n"):
            yield json.loads(line)


for folder in RUNS:
    with open(os.path.join(folder, "config.yaml"), encoding="utf-8") as file:
        configuration = yaml.safe_load(file)
    run = wandb.init(project="phalanx", name=os.path.basename(folder), config=configuration)
    run.define_metric("*", step_metric="step")
    for values in lines(os.path.join(folder, "metrics.jsonl")):
        run.log(values)
    run.finish()
