"""Every outer step of a run again, in float64, from what the islands (and the server) wrote (merges_dump.c).

    merge_formulas.py FOLDER [outer.KEY=VALUE ...]     keys as the islands had them; defaults are the configuration's

What an island changed, what compression made of it and what it kept are computed from its own weights; momentum is carried in float64
from the first merge to the last. Printed are the worst errors over all tensors, each relative (L2) to what it is an error of:
`reference`, to a merge's change of it (root mean square over the merges: one may cancel); `total`, of all merges, to all they changed.
More than 1e-6 is a failure. Only the decisions of an encoding (which integer, which element) are taken in fp32, as its format says;
fp32 roundings in between are what the error is. Needs NumPy.
"""

import json
import pathlib
import sys

import numpy as np

LIMIT = 1e-6
UNIT = 1 << 18  # elements of a unit at most: blocks and chunks are counted from its first element
DEFAULTS = {"topology": "all", "optimizer": "nesterov", "lr": "0.7", "momentum": "0.9", "mix": "0", "compress": "none",
            "density": "0.02", "error_decay": "1", "clip": "0", "weights": "tokens",
            "robust": "none", "agreement": "0.5", "bias": "mean"}


class Event:
    """A checkpoint of the dump: meta, and tensors joined from the rectangles of all ranks."""

    def __init__(self, folder):
        self.folder, manifest = folder, json.loads((folder / "manifest.json").read_text())
        self.meta, self.files = manifest["meta"], [f["name"] for f in manifest["files"]]
        self.tensors = {(t["section"], t["name"]): t for t in manifest["tensors"]}
        self.names = sorted({name for _, name in self.tensors})
        self.ranks = manifest["ranks"]

    def has(self, section):
        return any(s == section for s, _ in self.tensors)

    def get(self, section, name):
        t = self.tensors[section, name]
        out = np.full(t["shape"], np.nan, np.float32)
        for p in t["pieces"]:
            data = np.fromfile(self.folder / self.files[p["file"]], "<f4", int(np.prod(p["size"])), offset=p["offset"])
            out[tuple(slice(a, a + n) for a, n in zip(p["start"], p["size"]))] = data.reshape(p["size"])
        assert not np.isnan(out).any(), f"{self.folder}: {section} {name} has a hole"
        return out.astype(np.float64)


def events(folder, kind):
    return {int(p.name.split("-")[1]): Event(p) for p in sorted(folder.glob(kind + "-*")) if p.is_dir()}


def number_of(step, fragment):
    """Of an offer."""
    return step * 64 + fragment


# ---- compression: what others decode of a unit's change -------------------------------------------------------------


def to_bf16(x):
    bits = np.float32(x).view(np.uint32).astype(np.uint64)
    bits = (bits + np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def integers(x, block, top):
    out = np.zeros_like(x)
    for i in range(0, len(x), block):
        part = np.float32(x[i : i + block])
        scale = np.abs(part).max() / np.float32(top)
        if scale > 0:
            out[i : i + block] = np.clip(np.rint(part / scale), -top, top).astype(np.float64) * np.float64(scale)
    return out


def topk(x, density):
    out = np.zeros_like(x)
    for i in range(0, len(x), 4096):
        part = x[i : i + 4096]
        size = np.abs(part)
        places = np.argsort(-size, kind="stable")[: max(1, int(np.ceil(density * len(part))))]
        low, high = np.float32(size[places].min()), np.float32(size[places].max())
        large = size[places] > low + (high - low) / np.float32(2)
        levels = [to_bf16(size[places][side].mean()) if side.any() else 0.0 for side in (~large, large)]
        out[i + places] = np.where(part[places] < 0, -1, 1) * np.where(large, levels[1], levels[0])
    return out


def dct(x, density):
    n, k = np.arange(64), max(1, int(np.ceil(density * 64)))
    matrix = np.cos(np.pi * np.outer(n, 2 * n + 1) / 128) * np.sqrt(2 / 64)
    matrix[0] /= np.sqrt(2)
    runs = np.zeros((-(-len(x) // 64), 64))
    runs.ravel()[: len(x)] = x
    coefficients = np.float32(runs @ matrix.T)
    places = np.argsort(-np.abs(coefficients), axis=1, kind="stable")[:, :k]
    sent = np.zeros_like(runs)
    np.put_along_axis(sent, places, to_bf16(np.take_along_axis(coefficients, places, 1)), 1)
    return (sent @ matrix).ravel()[: len(x)]


def compressed(change, method, density):
    encode = {"none": lambda x: x, "bf16": to_bf16, "int8": lambda x: integers(x, 256, 127),
              "int4": lambda x: integers(x, 64, 7), "topk": lambda x: topk(x, density),
              "dct": lambda x: dct(x, density)}[method]
    rows = max(1, UNIT // (change.shape[1] if change.ndim > 1 else 1))
    return np.concatenate([encode(part.ravel()).reshape(part.shape)
                           for part in np.split(change, range(rows, len(change), rows))])


# ---- comparing ------------------------------------------------------------------------------------------------------


class Errors:
    def __init__(self):
        self.worst, self.where, self.merges, self.left_out, self.wrong = {}, {}, 0, 0, []

    def add(self, what, where, x, want, scale):
        apart, size = np.linalg.norm(x - want), np.linalg.norm(scale)
        error = apart / size if size > 0 else (0.0 if apart == 0 else np.inf)
        if what not in self.worst or not error <= self.worst[what]:
            self.worst[what], self.where[what] = error, where

    def expect(self, true, words):
        if not true:
            self.wrong.append(words)


# ---- the rules ------------------------------------------------------------------------------------------------------


class Model:
    """Momentum in float64, by name, and what the merges have changed of each tensor."""

    def __init__(self, keys):
        self.keys, self.momentum, self.start, self.moved, self.latest, self.sizes, self.apart = keys, {}, {}, {}, {}, {}, {}

    def rule(self, name, mean):
        """The change of the reference. A router's bias becomes the mean of the islands'."""
        if name.endswith("e_score_correction_bias") and self.keys["bias"] == "mean":
            return -mean
        lr, mu = float(self.keys["lr"]), float(self.keys["momentum"])
        if self.keys["optimizer"] == "average":
            return -lr * mean
        v = self.momentum[name] = mu * self.momentum.get(name, 0) + mean  # DiLoCo, 2311.08105: Nesterov's momentum
        return -lr * (mean + mu * v)

    def take(self, where, name, change, before, after):
        self.start.setdefault(name, before)
        self.moved[name] = self.moved.get(name, 0) + change
        self.latest[name] = after
        self.sizes.setdefault(name, []).append(np.linalg.norm(change))
        self.apart.setdefault(name, []).append((np.linalg.norm(after - before - change), where))

    def end(self, errors, where):
        for n, moved in self.moved.items():
            errors.add("total", f"{where} {n}", self.latest[n] - self.start[n], moved, moved)
            apart, merge = max(self.apart[n])
            errors.add("reference", f"{merge} {n}", apart, 0, np.sqrt(np.mean(np.square(self.sizes[n]))))


def check_change(errors, keys, e, kept, where):
    """What an island offered: from its weights to what the others decode. Returns that, and keeps what is left."""
    sent, fragment = {}, e.names
    clip = float(keys["clip"])
    norm = np.sqrt(sum(np.sum((e.get("before", n) - e.get("weights", n)) ** 2) for n in fragment))
    scale = min(1.0, clip / norm) if clip > 0 else 1.0
    for n in fragment:
        change = e.get("change", n)
        want = float(keys["error_decay"]) * kept.get(n, 0) + scale * (e.get("before", n) - e.get("weights", n))
        errors.add("change", f"{where} {n}", change, want, want)
        sent[n] = compressed(change, keys["compress"], float(keys["density"]))
        errors.add("sent", f"{where} {n}", e.get("sent", n), sent[n], sent[n])
        lost = np.abs(e.get("sent", n) + e.get("kept", n) - change)
        rounding = 2.0**-24 * (np.abs(change) + np.abs(e.get("sent", n))) if keys["compress"] in ("topk", "dct") else 0
        errors.expect((lost <= rounding).all(), f"{where} {n}: sent + kept is not the change")
    return sent


def check_settled(errors, keys, folder):
    for number, e in events(folder, "settle").items():
        for n in e.names:
            own, new = e.get("own", n), e.get("reference", n)
            want = new + float(keys["mix"]) * (own - new)  # Streaming DiLoCo, 2501.18512
            errors.add("settled", f"{folder.name} step {number} {n}", e.get("settled", n), want, want - own)


def judge(keys, sent):
    """What outer.robust scales whole changes by, and which slots trimmed leaves out."""
    flat = {s: np.concatenate([x.ravel() for x in of.values()]) for s, of in sent.items()}
    norms = {s: np.linalg.norm(x) for s, x in flat.items()}
    most = np.median(list(norms.values()))
    scale = {s: most / norm if norm > most else 1.0 for s, norm in norms.items()}

    def cosine(s, other):
        both = norms[s] * norms[other]
        return flat[s] @ flat[other] / both if both > 0 else 0.0

    agreement = {s: np.median([cosine(s, other) for other in sent if other != s]) if len(sent) > 1 else 0.0 for s in sent}
    least = float(keys["agreement"]) * np.median(list(agreement.values()))
    strangers = sorted((s for s in sent if agreement[s] < least and least > 0), key=agreement.get)
    return scale, strangers[: (len(sent) - 1) // 3] if keys["robust"] == "trimmed" else []


def combine(keys, tokens, sent, name, judged):
    """outer.robust: what a merge makes of the changes of a tensor."""
    scale, strangers = judged
    if keys["robust"] == "median":
        return np.median([sent[s][name] for s in tokens], axis=0)
    if keys["robust"] == "trimmed":
        trimmed = (len(tokens) - 1) // 3 - len(strangers)
        changes = np.sort([scale[s] * sent[s][name] for s in tokens if s not in strangers], axis=0)
        return changes[trimmed : len(changes) - trimmed].mean(axis=0)
    scale = scale if keys["robust"] == "clip" else dict.fromkeys(tokens, 1.0)
    return sum(tokens[s] * scale[s] * sent[s][name] for s in tokens) / sum(tokens.values())


def check_all(errors, keys, top):
    """topology all: the mean of the changes, by tokens, in the sequence of merges."""
    slots = {int(p.name[5:]): events(p, "merge") for p in sorted(top.glob("slot-*"))}
    offers = {int(p.name[5:]): events(p, "offer") for p in sorted(top.glob("slot-*"))}
    model, kept = Model(keys), {s: {} for s in slots}
    for number in sorted(set().union(*slots.values())):
        meta = next(iter(slots.values()))[number].meta
        parts = meta["parts"]
        tokens = {p["slot"]: p["tokens"] if keys["weights"] == "tokens" else 1 for p in parts}
        sent = {}
        for s, offer in ((p["slot"], p["offer"]) for p in parts):
            e = offers[s][number_of(offer, meta["fragment"])]
            sent[s] = check_change(errors, keys, e, kept[s], f"slot {s} merge {number}")
            kept[s].update({n: e.get("kept", n) for n in e.names})
            same = all((e.get("before", n) == slots[s][number].get("before", n)).all() for n in e.names)
            errors.expect(same, f"slot {s} merge {number}: the change is not of the reference")
        e = slots[s][number]
        judged = judge(keys, sent)
        errors.left_out += len(judged[1])
        for n in e.names:
            change = model.rule(n, combine(keys, tokens, sent, n, judged))
            model.take(f"merge {number}", n, change, e.get("before", n), e.get("after", n))
            for merges in slots.values():
                same = all((merges[number].get(x, n) == e.get(x, n)).all() for x in ("before", "after"))
                errors.expect(same, f"merge {number} {n}: islands differ")
        errors.merges += len(tokens) == len(slots)
    model.end(errors, "after all merges")
    for p in top.glob("slot-*"):
        check_settled(errors, keys, p)
    return slots


def check_gossip(errors, keys, top):
    """NoLoCo, 2506.10911: m <- mu m + lr mean (p - o) + lr (mean o - o_i); o_i <- o_i + m. The last exchange is the mean itself."""
    lr, mu = float(keys["lr"]), float(keys["momentum"])
    slots = {int(p.name[5:]): events(p, "merge") for p in sorted(top.glob("slot-*"))}
    offers = {int(p.name[5:]): events(p, "offer") for p in sorted(top.glob("slot-*"))}
    models = {s: Model(keys) for s in slots}
    for number in sorted(set().union(*slots.values())):
        here = {s: e[number] for s, e in slots.items() if number in e}
        for n in next(iter(here.values())).names:
            for s, e in here.items():
                group, own = e.meta["group"], e.get("before", n)
                p, o = [offers[g][number].get("weights", n) for g in group], [here[g].get("before", n) for g in group]
                m = mu * models[s].momentum.get(n, 0) + lr * np.mean([a - b for a, b in zip(p, o)], axis=0)
                m = models[s].momentum[n] = m + lr * (np.mean(o, axis=0) - own)
                mean = e.meta["mean"] or n.endswith("e_score_correction_bias") and keys["bias"] == "mean"
                change = np.mean(p, axis=0) - own if mean else m
                models[s].take(f"slot {s} exchange {number}", n, change, own, e.get("after", n))
        errors.merges += all(len(e.meta["group"]) > 1 for e in here.values()) and len(here) == len(slots)
    for s, model in models.items():
        model.end(errors, f"slot {s} after all exchanges")
    for p in top.glob("slot-*"):
        check_settled(errors, keys, p)
    return slots


def check_server(errors, keys, top):
    """One change at a time, by its tokens over the mean of the islands' last ones, and by 1 / staleness (1511.05950)."""
    slots = {int(p.name[5:]): events(p, "offer") for p in sorted(top.glob("slot-*"))}
    merges, model, last, stale = events(top / "server", "merge"), Model(keys), {}, 0
    taken = {(e.meta["slot"], e.meta["offer"]) for e in merges.values()}
    sent, history = {}, {}
    for s, pushes in slots.items():
        kept = {}
        for e in pushes.values():
            step = e.meta["step"]
            sent[s, step] = check_change(errors, keys, e, kept, f"slot {s} push {step}")
            if (s, step) in taken:
                kept = {n: e.get("kept", n) for n in e.names}
    for number, e in merges.items():
        slot, base = e.meta["slot"], e.meta["base"]
        last[slot] = e.meta["tokens"]
        age = max(1, number - 1 - base)
        weight = last[slot] / np.mean(list(last.values())) if keys["weights"] == "tokens" else 1.0
        stale += age > 1
        for n in e.names:
            history.setdefault(n, [(0, e.get("before", n))])
            change = sent[slot, e.meta["offer"]][n]
            errors.add("sent", f"merge {number} {n}", e.get("sent", n), change, change)
            moved = model.rule(n, change * weight / age)
            model.take(f"merge {number}", n, moved, e.get("before", n), e.get("after", n))
            history[n].append((number, e.get("after", n)))
        errors.merges += 1
    model.end(errors, "after all merges")
    for s, pushes in slots.items():  # an island's base: the server's model after merge `base`, or parts of later ones
        for e in pushes.values():
            for n in e.names:
                before = e.get("before", n)
                known = np.zeros(before.shape, bool)
                for number, after in history[n]:
                    known |= (before == after) & (number >= e.meta["base"])
                errors.expect(known.all(), f"slot {s} push {e.meta['step']} {n}: its base is no model of the server's")
    for p in top.glob("slot-*"):
        check_settled(errors, keys, p)
    errors.expect(stale > 0, "no change was older than another: nothing is known of staleness")
    return slots


def main():
    top, keys = pathlib.Path(sys.argv[1]), dict(DEFAULTS)
    for word in sys.argv[2:]:
        key, value = word.split("=")
        if key.removeprefix("outer.") in keys:
            keys[key.removeprefix("outer.")] = value
    errors = Errors()
    slots = {"all": check_all, "gossip": check_gossip, "server": check_server}[keys["topology"]](errors, keys, top)
    ranks = [next(iter(e.values())).ranks for e in slots.values()]
    print(f"{errors.merges} merges, {len(slots)} islands of {ranks} ranks, {errors.left_out} changes left out:",
          ", ".join(f"{what} {error:.1e}" for what, error in errors.worst.items()))
    for what, error in errors.worst.items():
        errors.expect(error <= LIMIT, f"{what}: error {error:.3e} ({errors.where[what]})")
    for words in errors.wrong[:10]:
        print("  " + words)
    return 1 if errors.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
