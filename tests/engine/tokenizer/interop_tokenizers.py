"""Token ids and MB/s beside Hugging Face's tokenizers, tiktoken and sentencepiece, on some 14 MB of hard text.

    python3 tests/engine/tokenizer/interop_tokenizers.py [build/phalanx]

Trains tokenizers in the styles of GPT-2, Llama 3 and Qwen (byte-level BPE, 32,000 tokens) and SentencePiece (unigram, BPE) on perl's pods,
encodes pods and generated multilingual text by everyone with one thread, compares the ids document by document. Speeds are per second of
processor time: the libraries' encoding alone, phalanx's whole process (start, JSON, files). Run by hand: it needs the Python packages
and some minutes. Exit status 1 if any id differs.
"""
import glob
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "2"

import numpy
import sentencepiece
import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"\p{N}{1,3}" + REST
QWEN = CONTRACTIONS + r"\p{N}" + REST

SAMPLES = """Zażółć gęślą jaźń, größte Straße, où êtes-vous? Съешь же ещё этих мягких французских булок. Η γρήγορη καφέ αλεπού.
我们认为这些真理是不言而喻的：人人生而平等。機械学習は東京で。カタカナとひらがな。대한민국의 수도는 서울입니다. Tiếng Việt rất đẹp.
يولد جميع الناس أحراراً متساوين. כל בני האדם נולדו בני חורין. सभी मनुष्यों को गौरव और अधिकारों के मामले में। มนุษย์ทั้งหลายเกิดมา ქართული ենք አማርኛ ᚠᛇᚻ
👨‍👩‍👧‍👦 🇩🇪🏳️‍🌈 👍🏽 ☕️ 😀😃 ½ Ⅷ ① ² ٣٤٥ १२३ 𝟘𝟙 𝒜𝓃𝒹 𐐷 𠀀𪛖 e\u0301o\u0308 \u212b \u1100\u1161\u11a8 <|endoftext|> don't WE'LL it's x'ſ"""
RANGES = [(0x20, 0x7E)] * 6 + [(0xA0, 0x24F), (0x250, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0xDFF), (0xE00, 0xEFF), (0x1E00, 0x20CF),
          (0x2100, 0x2BFF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFE00, 0xFFEF), (0x1F300, 0x1FAFF), (0x10000, 0x1D7FF),
          (0x20000, 0x20FFF), (0xE000, 0xE0FF), (0, 0x1F)]
SPACES = [" ", " ", " ", " ", "  ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", " \n ", "    ", "\u2028", "\u180e", "\u200b", "\x85", "\x0b"]


def generated(characters):
    """Words of all scripts, random characters, white space of all kinds."""
    r = random.Random(1)
    words = SAMPLES.split()
    made, size = [], 0
    while size < characters:
        parts = []
        for _ in range(r.randint(1, 400)):
            way = r.random()
            if way < 0.6:
                parts.append(r.choice(words))
            elif way < 0.7:
                parts.append(str(r.randint(0, 10 ** r.randint(1, 12))))
            elif way < 0.95:
                low, high = r.choice(RANGES)
                parts.append("".join(chr(r.randint(low, high)) for _ in range(r.randint(1, 12))))
            else:
                parts.append(r.choice("=-*#a ") * r.randint(1, 90))
            parts.append(r.choice(SPACES) if r.random() < 0.8 else "")
        text = "".join(parts)
        made.append(text)
        size += len(text)
    return made


def train_bpe(path, pattern, normalizer, texts):
    tok = Tokenizer(models.BPE())
    if pattern is GPT2:
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if normalizer:
        tok.normalizer = normalizer
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=32000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, special_tokens=["<|endoftext|>"]))
    tok.add_tokens([AddedToken("<|im_start|>", special=True)])
    tok.save(path)
    return tok


def as_tiktoken(tok, pattern):
    alphabet, shifted = {}, 256
    for byte in range(256):
        prints = 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or byte >= 0xAE
        alphabet[chr(byte) if prints else chr(shifted)] = byte
        shifted += not prints
    ranks = {bytes(alphabet[c] for c in token): i for token, i in tok.get_vocab(with_added_tokens=False).items() if token != "<|endoftext|>"}
    return tiktoken.Encoding("ours", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": tok.token_to_id("<|endoftext|>")})


def phalanx(program, tokenizer, data, folder, threads=1):
    prefix = os.path.join(folder, "out")
    before = os.times()
    subprocess.run([program, "tokenize", "--force", "--output", prefix, "--tokenizer", tokenizer, "--append-eod", "no", "--threads", str(threads), data], check=True, capture_output=True)
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    with open(prefix + ".idx", "rb") as f:
        index = f.read()
    code, sequences = index[17], int.from_bytes(index[18:26], "little")
    lengths = numpy.frombuffer(index, numpy.int32, sequences, 34)
    ids = numpy.fromfile(prefix + ".bin", {8: numpy.uint16, 4: numpy.int32}[code])
    return numpy.split(ids, numpy.cumsum(lengths)[:-1]), seconds


def timed(encode, texts, megabytes):
    start = time.process_time()
    ids = [encode(text) for text in texts]
    return ids, megabytes / (time.process_time() - start)


def compare(name, texts, ours, theirs):
    wrong = [i for i, (a, b) in enumerate(zip(ours, theirs)) if len(a) != len(b) or (a != numpy.asarray(b)).any()]
    wrong += [0] * (len(ours) != len(theirs))
    for i in wrong[:3]:
        at = next((k for k, (a, b) in enumerate(zip(ours[i], theirs[i])) if a != b), min(len(ours[i]), len(theirs[i])))
        print("  %s: document %d differs from id %d: %s / %s in %r" % (name, i, at, list(ours[i][at:at + 6]), list(theirs[i][at:at + 6]), texts[i][:60]))
    return len(wrong)


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else "build/phalanx"
    pods = [open(f, encoding="utf-8", errors="replace").read() for f in sorted(glob.glob("/usr/share/perl/5.36/pod/*.pod"))]
    sets = {"pods": [p for p in pods if p], "multilingual": generated(2500000)}
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        sizes = {}
        for name, texts in sets.items():
            sizes[name] = sum(len(t.encode()) for t in texts) / 1e6
            with open(os.path.join(folder, name + ".jsonl"), "w") as f:
                for text in texts:
                    f.write(json.dumps({"text": text}) + "\n")
        corpus = sets["pods"] + sets["multilingual"][::10]
        for style, pattern, normalizer in [("gpt2", GPT2, None), ("llama3", LLAMA3, None), ("qwen", QWEN, normalizers.NFC())]:
            path = os.path.join(folder, style + ".json")
            tok = train_bpe(path, pattern, normalizer, corpus)
            tik = as_tiktoken(tok, pattern)
            for name, texts in sets.items():
                theirs, speed = timed(lambda t: tok.encode(t, add_special_tokens=False).ids, texts, sizes[name])
                _, tik_speed = timed(lambda t: tik.encode(t, allowed_special="all"), texts, sizes[name])
                ours, seconds = phalanx(program, path, os.path.join(folder, name + ".jsonl"), folder)
                our_speed = sizes[name] / seconds
                wrong = compare(style, texts, ours, theirs)
                bad += wrong
                print("%-8s %-13s %5.1f MB %8d ids  %d of %d documents differ   MB/s: phalanx %.1f  tiktoken %.1f  tokenizers %.1f" % (
                    style, name, sizes[name], sum(map(len, theirs)), wrong, len(texts), our_speed, tik_speed, speed), flush=True)
        for kind in ["unigram", "bpe"]:
            out = io.BytesIO()
            lines = [line for text in corpus for line in text.splitlines() if line]
            sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=out, model_type=kind, vocab_size=8000, character_coverage=0.999, byte_fallback=True,
                                                     split_digits=True, normalization_rule_name="identity", remove_extra_whitespaces=False, num_threads=2, minloglevel=2)
            path = os.path.join(folder, kind + ".model")
            open(path, "wb").write(out.getvalue())
            sp = sentencepiece.SentencePieceProcessor(model_file=path)
            for name, texts in sets.items():
                theirs, speed = timed(sp.encode, texts, sizes[name])
                ours, seconds = phalanx(program, path, os.path.join(folder, name + ".jsonl"), folder)
                our_speed = sizes[name] / seconds
                wrong = compare(kind, texts, ours, theirs)
                bad += wrong
                print("%-8s %-13s %5.1f MB %8d ids  %d of %d documents differ   MB/s: phalanx %.1f  sentencepiece %.1f" % (
                    kind, name, sizes[name], sum(map(len, theirs)), wrong, len(texts), our_speed, speed), flush=True)
    return 1 if bad else 0


sys.exit(main())
