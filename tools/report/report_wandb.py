"""Sends runs of phalanx to Weights & Biases; `phalanx report RUN --wandb FILE.py` wrote this file.

    pip install wandb
    python3 FILE.py                       # what the runs have so far
    python3 FILE.py --follow              # one run, while it trains: until it is done, or this is interrupted
    WANDB_MODE=offline python3 FILE.py    # without a network; later `wandb sync`

A run is one run there, over all of its starts and all calls of this: RUN/wandb.json keeps its id, and which steps were sent. A step
that is done again with another result is sent again. A copy of a run's folder is another run without its wandb.json.
"""

import json
import os
import secrets
import sys
import time

import wandb
import yaml  # of wandb's own requirements

DATA = @DATA@
RUNS, NAMES = DATA["runs"], DATA["names"]  # folders; a number of metrics.jsonl, and its name there
KINDS = {"loss": "train", "eval_loss": "eval", "islands_disagreement": "islands"}  # a line's key, and what it is about
REMEMBERED = 2000  # steps of each kind whose values are compared
SETTLED = 15  # seconds


class Sent:
    """RUN/wandb.json: the id, and the last steps of each kind with their values."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "wandb.json")
        try:
            with open(self.path, encoding="utf-8") as file:
                kept = json.load(file)
        except FileNotFoundError:
            kept = {"id": secrets.token_hex(8), "sent": {}}
        self.id, self.kinds = kept["id"], {k: {int(s): v for s, v in steps.items()} for k, steps in kept["sent"].items()}
        self.copy, self.copied = kept["sent"], 0
        self.save()

    def has(self, kind, step, value):
        steps = self.kinds.get(kind, {})
        return steps[step] == value if step in steps else bool(steps) and step < min(steps)

    def add(self, kind, step, value):
        steps = self.kinds.setdefault(kind, {})
        steps[step] = value
        while len(steps) > REMEMBERED:
            del steps[min(steps)]

    def save(self, all=False):
        """What was sent some time ago: wandb has it on its disk by then, even if both are killed. Twice is better than never."""
        if all:
            self.copy = self.kinds
        elif time.monotonic() - self.copied < SETTLED and os.path.exists(self.path):
            return
        with open(self.path + ".tmp", "w", encoding="utf-8") as file:
            json.dump({"id": self.id, "sent": self.copy}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(self.path + ".tmp", self.path)
        self.copy, self.copied = {k: dict(v) for k, v in self.kinds.items()}, time.monotonic()


def lines(path):
    """The lines that are whole; of a run that goes on the last may not be."""
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):
                    yield line
    except FileNotFoundError:
        return


def values_of(kind, line):
    if kind == "train":
        return {NAMES[k]: v for k, v in line.items() if k in NAMES and v is not None}
    if kind == "eval":
        return {"eval/loss": line["eval_loss"], **{"eval/" + k: v for k, v in line.get("eval_losses", {}).items()}}
    return {"islands/disagreement": line["islands_disagreement"]}


def send_new(run, folder, sent):
    for text in lines(os.path.join(folder, "metrics.jsonl")):
        line = json.loads(text)
        for key, kind in KINDS.items():
            if key in line and not sent.has(kind, line["step"], line[key]):
                run.log({"step": line["step"], **values_of(kind, line)})
                sent.add(kind, line["step"], line[key])
    sent.save()


def is_done(folder, steps):
    try:
        with open(os.path.join(folder, "summary.json"), encoding="utf-8") as file:
            summary = json.load(file)
    except (FileNotFoundError, ValueError):
        return False
    return summary.get("ended") == "done" and summary.get("steps", 0) >= steps


def send(folder, follow):
    with open(os.path.join(folder, "config.yaml"), encoding="utf-8") as file:
        configuration = yaml.safe_load(file)
    sent = Sent(folder)
    run = wandb.init(project=os.environ.get("WANDB_PROJECT", "phalanx"), name=os.path.basename(folder), id=sent.id, resume="allow",
                     config=configuration)
    run.define_metric("*", step_metric="step")
    try:
        while True:
            done = not follow or is_done(folder, configuration["train"]["steps"])  # before the file is read: then it has all
            send_new(run, folder, sent)
            if done:
                break
            time.sleep(2)
    except KeyboardInterrupt:
        pass
    run.finish()
    sent.save(all=True)


def main():
    follow = "--follow" in sys.argv[1:]
    if sys.argv[1:] not in ([], ["--follow"]) or (follow and len(RUNS) > 1):
        raise SystemExit("usage: python3 FILE.py [--follow], the latter of one run")
    for folder in RUNS:
        send(folder, follow)


if __name__ == "__main__":
    main()
