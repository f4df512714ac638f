"""transformers' AutoTokenizer on folders that `phalanx convert` exports gives the ids of `phalanx tokenize`, on hard text.

    python3 tests/engine/tokenizer/interop_autotokenizer.py [build/phalanx [families]]

Tokenizers (bytes, byte-level BPE of three kinds, SentencePiece unigram and BPE trained by phalanx, both trained by SentencePiece without byte
fallback, and unigram of a text without the characters of "<s>") times thirteen architectures: each is trained one step, exported and loaded. And
the families' tokenizers (family_tokenizers.py): as they are published, and exported with a model of the family, trained on documents that begin
in each way that tokenize has: the export must begin texts so, and the ids behind that are the same. The texts: the cases of
tests/golden/text, mixtures of them, perl's pods, runs of one character. Ids, decoded text, and the ids of bos and eos are compared. Run by hand:
it needs transformers, sentencepiece, protobuf and some minutes; `families` as the second argument leaves the first part out. Exit status
1 if anything differs.
"""
import glob
import io
import json
import os
import random
import subprocess
import sys
import tempfile

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy
import sentencepiece
import transformers
from sentencepiece import sentencepiece_model_pb2
from transformers import AutoTokenizer

import family_tokenizers

transformers.logging.set_verbosity_error()

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "..", "golden", "text")
ARCHITECTURES = ["gpt2", "llama", "mistral", "qwen2", "qwen3", "starcoder2", "smollm3", "granite", "gemma3_text", "phi3", "gpt_neox", "glm4", "olmo2", "mixtral",
                 "qwen3_moe", "olmoe", "granitemoe", "glm4_moe", "deepseek_v2", "deepseek_v3", "gpt_oss"]


def hard_texts():
    cases = []
    with open(os.path.join(GOLDEN, "gpt2.golden")) as f:
        for line in f:
            cases.append(bytes.fromhex(line.split("\t")[1]).decode("utf-8", "replace"))
    r = random.Random(1)
    mixed = ["".join(r.choice(cases) + r.choice([" ", "", "\n", "  "]) for _ in range(r.randint(2, 60))) for _ in range(150)]
    runs = ["".join(r.choice([c * r.randint(1, 60) for c in " a=-#*0\n.é我"]) for _ in range(r.randint(1, 12))) for _ in range(300)]
    names = ["<s>", "</s> a", "x <unk> y", "<0x41><0xFF>", "<eod>", "a<s></s>b<0x0A>", "<|endoftext|>", "▁", "a▁b", " ▁ ", "▁▁ ▁"]
    pods = [open(f, encoding="utf-8", errors="replace").read() for f in sorted(glob.glob("/usr/share/perl/5.*/pod/perl*.pod"))][::12]
    return [t for t in cases + mixed + runs + names + pods if t]


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit("%s: %s%s" % (" ".join(command), done.stdout, done.stderr))


def read_ids(prefix):
    with open(prefix + ".idx", "rb") as f:
        index = f.read()
    code, sequences = index[17], int.from_bytes(index[18:26], "little")
    lengths = numpy.frombuffer(index, numpy.int32, sequences, 34)
    ids = numpy.fromfile(prefix + ".bin", {8: numpy.uint16, 4: numpy.int32}[code])
    return [part.tolist() for part in numpy.split(ids, numpy.cumsum(lengths)[:-1])]


def without_fallback(path, kind, lines):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=out, model_type=kind, vocab_size=900, byte_fallback=False,
                                             normalization_rule_name="identity", remove_extra_whitespaces=True, num_threads=2, minloglevel=2)
    open(path, "wb").write(out.getvalue())
    return path


def tokenizers(program, folder, corpus):
    """name -> what --tokenizer takes"""
    made = {"bytes": "bytes"}
    for name in ["gpt2", "llama3", "qwen"]:
        made[name + " BPE"] = os.path.join(GOLDEN, name + ".json")
    for kind in ["unigram", "bpe"]:
        path = os.path.join(folder, kind + ".model")
        run(program, "tokenize", "--force", "--output", os.path.join(folder, "train"), "--tokenizer", path, "--train-vocab", "2000", "--train-type", kind, corpus)
        made["SentencePiece " + kind] = path
    lines = [line for text in (json.loads(l)["text"] for l in open(corpus)) for line in text.splitlines() if line]
    for kind in ["unigram", "bpe"]:
        made["SentencePiece %s, no byte fallback" % kind] = without_fallback(os.path.join(folder, kind + "-unk.model"), kind, lines)
    prose = ["".join(c for c in line if c not in "<>0x") for line in lines]  # the names of control pieces cannot be spelled
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(prose), model_writer=out, model_type="unigram", vocab_size=1000, byte_fallback=True,
                                             normalization_rule_name="identity", remove_extra_whitespaces=False, num_threads=2, minloglevel=2)
    path = os.path.join(folder, "prose.model")
    open(path, "wb").write(out.getvalue())
    made["SentencePiece unigram of prose"] = path
    return made


def vocabulary_of(prefix):
    sizes = {".tokenizer.bytes": lambda p: 257, ".tokenizer.model": lambda p: sentencepiece.SentencePieceProcessor(model_file=p).get_piece_size(),
             ".tokenizer.json": lambda p: 1 + max([*json.load(open(p))["model"]["vocab"].values(), *[t["id"] for t in json.load(open(p))["added_tokens"]]])}
    for suffix, size in sizes.items():
        if os.path.exists(prefix + suffix):
            return size(prefix + suffix)
    raise SystemExit(prefix + " has no tokenizer")


def train_a_step(program, architecture, prefix, folder):
    shape = dict(architecture=architecture, layers=1, hidden_size=16, heads=2, ffn_size=32, vocab_size=vocabulary_of(prefix), max_sequence=32)
    step = dict(steps=1, sequence=32, micro_batch=1, global_batch=1, precision="fp32")
    with open(folder + ".yaml", "w") as f:
        json.dump(dict(model=shape, data=dict(train=prefix), train=step, optimizer=dict(lr=0.001), run=dict(folder=folder)), f)
    run(program, "train", folder + ".yaml")


class Scores:
    """Of a unigram model whose scores are sums of many bits: programs that add in single and in double precision decide differently between paths
    of nearly equal scores."""

    def __init__(self, spec):
        self.scores, self.frames = None, spec.endswith(".model") or "llama3" in spec or spec.endswith(("gemma", "llama2"))
        if spec.endswith(".model"):
            model = sentencepiece_model_pb2.ModelProto()
            model.ParseFromString(open(spec, "rb").read())
            if model.trainer_spec.model_type == 1 and any(p.score * 128 % 1 for p in model.pieces):
                self.scores = [p.score for p in model.pieces]

    def equal(self, a, b):
        """Whether a sum in single precision cannot tell them apart."""
        if self.scores is None:
            return False
        one, other = (sum(self.scores[i] for i in ids) for ids in (a, b))
        return abs(one - other) <= max(len(a), len(b)) * float(numpy.spacing(numpy.float32(max(abs(one), abs(other)))))


def compare(folder, texts, ours, decoded, scores, recorded=False):
    """Texts with other ids, ids that decode to other text, and paths of equal scores; prints the first of each. `recorded`: the bos that the export
    names, if any, begins a text, whatever the tokenizer's own files say."""
    wrong, ties = [], 0
    for trusted in [False, True]:
        tok = AutoTokenizer.from_pretrained(folder, trust_remote_code=trusted)
        rest = iter(ours)
        for text in texts:
            ids = tok(text, add_special_tokens=False)["input_ids"]
            mine = next(rest, []) if ids else ids
            if mine != ids and scores.equal(mine, ids):
                ties += 1
            elif mine != ids:
                wrong.append((text, mine, ids))
                break
    back = [(tok.decode(ids, clean_up_tokenization_spaces=False).encode(), text) for ids, text in zip(ours, decoded)]
    # `tokenizers` takes letters of added tokens for bytes; an unknown piece has two names
    other = [(a, b) for a, b in back if b"\xef\xbf\xbd" not in a and a != b.replace(" \u2047 ".encode(), b"<unk>")]
    for text, mine, ids in wrong[:1]:
        at = next((k for k, (a, b) in enumerate(zip(mine, ids)) if a != b), 0)
        print("   %r: id %d: ours %s, AutoTokenizer's %s" % (text[:60], at, mine[at:at + 6], ids[at:at + 6]))
    for a, b in other[:1]:
        print("   decoded: AutoTokenizer %r, ours %r" % (a[:60], b[:60]))
    config = json.load(open(os.path.join(folder, "config.json")))
    if "eos_token_id" not in config:  # a published folder, whose model phalanx has not made
        config = dict(eos_token_id=tok.eos_token_id, bos_token_id=tok.bos_token_id)
    marked = tok.eos_token_id == config["eos_token_id"] and tok.eos_token_id is not None and tok.bos_token_id == config["bos_token_id"]
    framed = tok("a")["input_ids"] == ([tok.bos_token_id] if tok.bos_token_id is not None and (recorded or scores.frames) else []) + tok("a", add_special_tokens=False)["input_ids"]
    if not marked or not framed:
        print("   bos, eos: %s, %s; config.json has %s, %s; framed: %s" % (tok.bos_token_id, tok.eos_token_id, config["bos_token_id"], config["eos_token_id"], framed))
    return len(wrong) + len(other) + (not marked) + (not framed), ties


def tokenize(program, prefix, spec, data):
    """The ids of all texts, and the first texts' ids decoded again."""
    for old in glob.glob(prefix + ".*"):
        os.remove(old)
    run(program, "tokenize", "--output", prefix, "--tokenizer", spec, "--append-eod", "no", data)
    ours = read_ids(prefix)
    return ours, [subprocess.run([program, "detokenize", "--tokenizer", spec], input=(" ".join(map(str, ids)) + "\n").encode(), capture_output=True).stdout[:-1]
                  for ids in ours[:60]]


# How tokenize begins documents, and the word that the export must follow.
BEGINS = {"end": [], "nothing": ["--append-eod", "no"], "token": ["--begin"]}


def export(program, architecture, prefix, folder, spec, data, begin):
    run(program, "tokenize", "--force", "--output", prefix, "--tokenizer", spec, *BEGINS[begin], data)
    there = os.path.join(folder, "run"), os.path.join(folder, "exported")
    subprocess.run(["rm", "-rf", *there])
    train_a_step(program, architecture, prefix, there[0])
    run(program, "convert", "--from", there[0], "--to", there[1])
    return there[1]


def report(name, what, found, texts, ours):
    wrong, ties = found
    print("%-40s %-17s %d texts, %d ids: %s%s" % (name, what, len(texts), sum(map(len, ours)), "wrong" if wrong else "the same",
                                                  ", but %d paths of equal scores" % ties if ties else ""), flush=True)
    return wrong


def main():
    program = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/phalanx")
    texts, bad = hard_texts(), 0
    with tempfile.TemporaryDirectory() as folder:
        data, prefix = os.path.join(folder, "texts.jsonl"), os.path.join(folder, "data")
        with open(data, "w") as f:
            f.writelines(json.dumps({"text": t}) + "\n" for t in texts)
        lines = [line for text in texts for line in text.splitlines() if line]
        for name, (_, architecture) in family_tokenizers.FAMILIES.items():
            spec = os.path.join(folder, name)
            family_tokenizers.build(spec, name, lines)
            ours, decoded = tokenize(program, prefix, spec, data)
            bad += report(name, "published", compare(spec, texts, ours, decoded, Scores(spec)), texts, ours)
            for begin in BEGINS:
                try:
                    exported = export(program, architecture if architecture in ARCHITECTURES else "llama", prefix, folder, spec, data, begin)
                except SystemExit as refused:
                    if begin != "token" or "no token that begins a text" not in str(refused):
                        raise
                    continue
                bad += report(name, "exported, " + begin, compare(exported, texts, ours, decoded, Scores(spec), True), texts, ours)
        if "families" in sys.argv[2:]:
            return 1 if bad else 0
        for name, spec in tokenizers(program, folder, data).items():
            ours, decoded = tokenize(program, prefix, spec, data)
            for architecture in ARCHITECTURES:
                exported = export(program, architecture, prefix, folder, spec, data, "end")
                bad += report(name, architecture, compare(exported, texts, ours, decoded, Scores(spec), True), texts, ours)
    return 1 if bad else 0


sys.exit(main())
