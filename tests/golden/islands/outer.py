"""Golden values of outer steps: every rule and every compression in float64, three islands, five outer steps.

Needs NumPy. Writes outer.json beside itself: for each case the reference after each step. Islands' changes are drawn as the C
test draws them (tests/engine/islands/test_outer.c), so that only the arithmetic is compared.
"""

import json
import pathlib

import numpy as np

ISLANDS, STEPS, ELEMENTS = 3, 5, 300
TOKENS = [4096, 8192, 2048]
DENSITY = 0.05


def draw(island, step):
    state, out = np.uint64(island * 1000 + step * 10 + 7), []
    with np.errstate(over="ignore"):
        for _ in range(ELEMENTS):
            state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
            out.append(float(state >> np.uint64(40)) / 2**24 - 0.5)
    return np.array(out) ** 3


def to_bf16(x):
    bits = np.float32(x).view(np.uint32).astype(np.uint64)
    bits = (bits + np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def integers(x, block, top):
    out = np.empty_like(x)
    for i in range(0, len(x), block):
        part = x[i : i + block]
        scale = np.abs(part).max() / top
        out[i : i + block] = np.rint(part / scale) * scale
    return out


def topk(x):
    k = int(np.ceil(DENSITY * len(x)))
    places = np.sort(np.argsort(-np.abs(x), kind="stable")[:k])
    size = np.abs(x[places])
    middle = size.min() + (size.max() - size.min()) / 2
    large = size > middle
    level = [to_bf16(size[~large].mean()), to_bf16(size[large].mean()) if large.any() else 0.0]
    out = np.zeros_like(x)
    out[places] = np.sign(x[places]) * np.where(large, level[1], level[0])
    return out


def dct(x):
    # DeMo's: of each 64 elements the largest DCT coefficients, here as bf16
    k, frequency = int(np.ceil(DENSITY * 64)), np.arange(64)
    matrix = np.cos(np.pi * np.outer(frequency, 2 * np.arange(64) + 1) / 128) * np.sqrt(2 / 64)
    matrix[0] /= np.sqrt(2)
    out = np.zeros_like(x)
    for i in range(0, len(x), 64):
        part = np.zeros(64)
        part[: len(x[i : i + 64])] = x[i : i + 64]
        coefficients = matrix @ part
        sent = np.zeros(64)
        places = np.argsort(-np.abs(coefficients), kind="stable")[:k]
        sent[places] = to_bf16(coefficients[places])
        out[i : i + 64] = (matrix.T @ sent)[: len(x[i : i + 64])]
    return out


METHODS = {
    "none": lambda x: x,
    "bf16": lambda x: to_bf16(x),
    "int8": lambda x: integers(x, 256, 127),
    "int4": lambda x: integers(x, 64, 7),
    "topk": topk,
    "dct": dct,
}


def run(rule, method, lr, momentum, decay):
    reference, velocity = np.zeros(ELEMENTS), np.zeros(ELEMENTS)
    error = [np.zeros(ELEMENTS) for _ in range(ISLANDS)]
    after = []
    for step in range(STEPS):
        mean = np.zeros(ELEMENTS)
        for i in range(ISLANDS):
            whole = decay * error[i] + draw(i, step)
            sent = METHODS[method](whole)
            error[i] = whole - sent
            mean += TOKENS[i] / sum(TOKENS) * sent
        if rule == "average":
            reference = reference - lr * mean
        else:
            velocity = momentum * velocity + mean
            reference = reference - lr * (mean + momentum * velocity)
        after.append([float(f"{x:.12g}") for x in reference])
    return after


# A server: changes one by one, (island, base), each scaled by its tokens over the mean of the islands' last ones, over its age
PUSHES = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 2), (1, 5), (2, 3), (0, 4)]


def server(rule, weights, lr, momentum):
    reference, velocity, last, after = np.zeros(ELEMENTS), np.zeros(ELEMENTS), {}, []
    for merge, (island, base) in enumerate(PUSHES):
        last[island] = TOKENS[island] + 512 * merge
        weight = last[island] / np.mean(list(last.values())) if weights == "tokens" else 1.0
        change = draw(island, merge) * weight / max(1, merge - base)
        if rule == "average":
            reference = reference - lr * change
        else:
            velocity = momentum * velocity + change
            reference = reference - lr * (change + momentum * velocity)
        after.append([float(f"{x:.12g}") for x in reference])
    return after[-2:]


# NoLoCo with one lr for both of its terms; pairs of four islands at each step, the last of them alone for want of a partner
GROUPS = [[[0, 1], [2, 3]], [[0, 2], [1, 3]], [[1, 2], [0, 3]], [[0, 1, 2], [3]], [[2, 3], [0, 1]]]


def gossip(lr, momentum):
    islands = range(4)
    reference = [draw(i, 9) for i in islands]
    velocity = [np.zeros(ELEMENTS) for _ in islands]
    for step, groups in enumerate(GROUPS):
        new = [reference[i] - draw(i, step) for i in islands]
        old = [r.copy() for r in reference]
        for group in groups:
            change = np.mean([new[i] - old[i] for i in group], axis=0)
            center = np.mean([old[i] for i in group], axis=0)
            for i in group:
                velocity[i] = momentum * velocity[i] + lr * change + lr * (center - old[i])
                reference[i] = old[i] + velocity[i]
    return [[float(f"{x:.12g}") for x in r] for r in reference], [[float(f"{x:.12g}") for x in r] for r in old]


def main():
    cases = []
    for rule, lr, momentum in [("average", 1.0, 0.0), ("average", 0.5, 0.0), ("nesterov", 0.7, 0.9)]:
        for method in METHODS:
            decay = 0.9 if lr == 0.5 else 1.0
            cases.append({"rule": rule, "method": method, "lr": lr, "momentum": momentum, "decay": decay,
                          "after": run(rule, method, lr, momentum, decay)[-2:]})
    gossips = []
    for lr, momentum in [(1.0, 0.0), (0.7, 0.5)]:
        after, before = gossip(lr, momentum)
        gossips.append({"lr": lr, "momentum": momentum, "before": before, "after": after})
    servers = [{"rule": rule, "weights": weights, "lr": lr, "momentum": momentum,
                "after": server(rule, weights, lr, momentum)}
               for rule, lr, momentum in [("average", 1.0, 0.0), ("nesterov", 0.7, 0.5)]
               for weights in ["tokens", "equal"]]
    text = json.dumps({"density": DENSITY, "tokens": TOKENS, "cases": cases, "gossip": gossips, "server": servers})
    pathlib.Path(__file__).with_name("outer.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
