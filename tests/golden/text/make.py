"""Makes the tokenizer files and golden ids of this folder with Hugging Face's `tokenizers` and `sentencepiece`.

    python3 tests/golden/text/make.py        # writes beside itself; needs the two packages and perl's pods
    python3 tests/golden/text/make.py families   # those of the families alone; needs protobuf and transformers, too

Each *.golden holds one case a line: flags (p: special names are text), the text's bytes in hexadecimal, the ids in decimal, separated by
tabs; of some the text that the ids are decoded to, in hexadecimal. Malformed UTF-8 goes to the libraries as after replacement by U+FFFD.
"""
import glob
import io
import json
import os
import sys
import tempfile

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"\p{N}{1,3}" + REST
QWEN = CONTRACTIONS + r"\p{N}" + REST
# a pattern that no scanner knows: letters by case with their marks
CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}]*[\p{Ll}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}]+|\p{L}|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"

MULTILINGUAL = """
Zażółć gęślą jaźń. Příliš žluťoučký kůň úpěl ďábelské ódy. Größe, Straße, Äpfel. Où êtes-vous, garçon? ¿Dónde está el niño?
Съешь же ещё этих мягких французских булок, да выпей чаю. Η γρήγορη καφέ αλεπού πηδάει πάνω από το νωχελικό σκυλί.
我们认为这些真理是不言而喻的：人人生而平等。机器学习模型处理文本。東京は日本の首都です。カタカナとひらがな。대한민국의 수도는 서울입니다.
يولد جميع الناس أحراراً متساوين في الكرامة والحقوق. כל בני האדם נולדו בני חורין. सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता। มนุษย์ทั้งหลายเกิดมามีอิสระ
👨‍👩‍👧‍👦 🇩🇪 🏳️‍🌈 👍🏽 ☕️ 😀😃😄 ½ Ⅷ ① ² ٣٤٥ १२३ e\u0301 o\u0308 \u212b \ufb01 \u1e9b\u0323
for (int i = 0; i < n; i++) { printf("%d\\n", x[i] ^ 0xFF); }\tif (!p) return NULL;  // it's done
def f(self, *args, **kwargs):\n    return [x for x in range(10) if x % 2 == 0]\n
"""


def english():
    files = sorted(glob.glob("/usr/share/perl/5.36/pod/perlf*.pod"))
    return "".join(open(f, encoding="utf-8", errors="replace").read() for f in files)[:600000]


CASES = [s.encode() for s in [
    "", " ", "  ", "\n", "\r\n", "\r\n\r\n", "a", " a", "  a", "Hello world", "Hello, world! It's we'll they'd I'm you're we've",
    "IT'S WE'LL THEY'D I'M YOU'RE WE'VE don't DON'T 'sup 's ''s 'ſ 'S '\u017f x'\u017fy", "can't've o'clock rock'n'roll 'tis",
    "123 1234 12345 1234567 3.14159 1,000,000 0xDEADBEEF 1e-9 2024-01-31T12:34:56Z", "٣٤٥ १२३ ½ ² Ⅷ ①②③ 𝟘𝟙𝟚",
    "tabs\tand\t\ttabs\n\n\nnew\nlines \n trailing   \n", "   leading", "trailing   ", "\t\t", " \t \n \t x", "a\r\nb\rc\n\rd\r\n\r\n e",
    "a\u00a0b\u2003c\u3000d\u2028e\u2029f\u0085g\u180eh\u200bi\ufeffj", "\u00a0\u00a0x \u3000 y", "\u180e \u180ex  \u180e",
    "x = y+z; foo(bar)->baz[3]; /* c */ // d\n\tif (a && b || !c) { return -1; }\n", "#!/usr/bin/perl -w\nuse strict;\n$x =~ s/^\\s+//g;",
    "def f(x):\n    return {'a': [1, 2, 3], \"b\": None}\n\n\n", "https://example.com/a/b?c=d&e=f#g user@host.org C:\\dir\\file",
    "我们认为这些真理是不言而喻的，人人生而平等。", "東京は日本の首都です。カタカナ ひらがな", "대한민국의 수도는 서울입니다", "한글 (NFD)",
    "يولد جميع الناس أحراراً متساوين في الكرامة", "כל בני האדם נולדו", "सभी मनुष्यों को गौरव", "มนุษย์ทั้งหลายเกิดมามีอิสระ", "Съешь же ещё этих",
    "👨‍👩‍👧‍👦", "🇩🇪🏳️‍🌈👍🏽☕️", "text👍🏽text 😀 😃😄", "e\u0301 o\u0308u\u0308 a\u0323\u0307 a\u0307\u0323 \u0301alone", "\u212b \u2126 \u1e9b\u0323 \ufb01 \u0344 \u0958",
    "Zażółć gęślą jaźń", "naïve café coöperate Ångström", "\u00c5 A\u030a \u1100\u1161\u11a8 \uac01 \u0928\u093c", "𝒜𝓃𝒹 𝔪𝔬𝔯𝔢 𐐷 𐎠 𠀀𪛖 🀄", "\U00011099\U000110ba \U0001d15e \U0002f800",
    "a" * 31, "a" * 32, "b" * 33, "a" * 300, "ab" * 200, " " * 100, "\n" * 70, "=" * 80 + "\n" + "-" * 80, "supercalifragilisticexpialidocious" * 9,
    "\x00", "a\x00b\x00", "\x01\x02\x7f control", "\u0378 unassigned \U000e0fff \U0010ffff \ue000", "�", "\ufffd\ufffd",
    "<|endoftext|>", "text<|endoftext|>text", "a <|endoftext|> b", "<|endoftext", "<|endoftext|><|endoftext|>", "<|im_start|>user\nhi<|im_end|>",
    " <mask> x", "x   <mask>   y", "<mask><mask>", "word wordword word_word word. sword (word)", "  strip  strip ", "e\u0301x café cafe\u0301 CAFE\u0301", "<s></s><unk>",
    "<|end<|endoftext|>", "<|endoftext|>\u00a0\u3000<mask>\n\n", "'s't're've'm'll'd", "a's b't", "''''", "'", "'l", "'r", "'L'L",
]] + [b"\xff", b"a\xffb", b"\xc3", b"\xc3(", b"\xe2\x82", b"\xe2\x28\xa1", b"\xf0\x9f\x98", b"x\xf0\x9f\x98y", b"\xf0\x28\x8c\xbc", b"\xed\xa0\x80", b"\xc0\xaf", b"\xe0\x80\xaf",
      b"\xf4\x90\x80\x80", b"\x80\x80", b"ok \xe6\x88\x91\xe6\x88 cut", b"\xf5\x80\x80\x80 \xfe\xfe\xff\xff", b"\xf1\x80\x80\xc3\xa9"]


def lossy(data):
    return data.decode("utf-8", errors="replace")


def train(path, pre, normalizer, vocab, added, post=None, tweak=None, corpus=None):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre
    if normalizer:
        tok.normalizer = normalizer
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
                                  special_tokens=["<|endoftext|>"])
    tok.train_from_iterator((corpus or english() + MULTILINGUAL * 20).splitlines(keepends=True), trainer)
    tok.add_tokens(added)
    if post:
        tok.post_processor = post(tok)
    spec = json.loads(tok.to_str())
    if tweak:
        tweak(spec)
    name = os.path.join(HERE, path)
    with open(name + ".json", "w", encoding="utf-8") as f:
        json.dump(spec, f, ensure_ascii=False, indent=None, separators=(",", ":"))
    write_golden(name, Tokenizer.from_file(name + ".json"))


def write_golden(name, tok):
    with open(name + ".golden", "w") as f:
        for case in CASES:
            text = lossy(case)
            tok.encode_special_tokens = False
            ids = tok.encode(text, add_special_tokens=False).ids
            f.write("-\t%s\t%s\n" % (case.hex(), " ".join(map(str, ids))))
            tok.encode_special_tokens = True
            plain = tok.encode(text, add_special_tokens=False).ids
            if plain != ids:
                f.write("p\t%s\t%s\n" % (case.hex(), " ".join(map(str, plain))))


def old_merges(spec):
    spec["model"]["merges"] = [" ".join(m) for m in spec["model"]["merges"]]
    del spec["model"]["type"]


def whole_words(spec):
    """Tokens that no merge makes, found by ignore_merges only."""
    vocab = spec["model"]["vocab"]
    spec["model"]["ignore_merges"] = True
    first = len(vocab)
    words = [w for w in ["\u0120supercal", "'s't", "\u0120aaaaaaa", "worldly", "a" * 31, "a" * 32] if w not in vocab]
    for i, word in enumerate(words):
        vocab[word] = first + i
    for token in spec["added_tokens"]:
        token["id"] += len(words) if token["id"] >= first else 0


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior, invert),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def bos(tok):
    i = tok.token_to_id("<|endoftext|>")
    return processors.Sequence([processors.ByteLevel(trim_offsets=False),
                                processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", i)])])


def sentencepieces():
    text = english() + MULTILINGUAL * 20
    rules = os.path.join(HERE, "rules.tsv")  # a small character map: the whole of NFKC takes 240 KB
    with open(rules, "w") as f:
        for old, new in [("\u00a0", " "), ("\u3000", " "), ("\t", " "), ("\n", " "), ("\ufb01", "fi"), ("A\u030a", "\u00c5"), ("\u00bd", "1/2"), ("\u200b", "")]:
            f.write(" ".join("%X" % ord(c) for c in old) + "\t" + " ".join("%X" % ord(c) for c in new) + "\n")
    for kind, extra in [("unigram", {}), ("bpe", {}),
                        ("mapped", {"model_type": "unigram", "normalization_rule_tsv": rules, "remove_extra_whitespaces": True, "byte_fallback": False, "vocab_size": 600, "character_coverage": 0.99})]:
        out = io.BytesIO()
        how = dict(model_type=kind, vocab_size=1200, byte_fallback=True, split_digits=True, normalization_rule_name="identity",
                   remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, num_threads=1, minloglevel=2)
        how.update(extra)
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(text.splitlines()), model_writer=out, **how)
        name = os.path.join(HERE, kind)
        open(name + ".model", "wb").write(out.getvalue())
        sp = sentencepiece.SentencePieceProcessor(model_file=name + ".model")
        with open(name + ".golden", "w") as f:
            for case in CASES:
                ids = sp.encode(lossy(case))
                f.write("-\t%s\t%s\t%s\n" % (case.hex(), " ".join(map(str, ids)), sp.decode(ids).encode().hex()))
    os.remove(rules)
    with open(os.path.join(HERE, "long.golden"), "w") as f:
        ids = sentencepiece.SentencePieceProcessor(model_file=os.path.join(HERE, "unigram.model")).encode(long_text())
        f.write("%d %016x\n" % (len(ids), fnv(ids)))


def long_text():
    """So long that its score has no bits left for a piece, and encoded in two parts it has other ids: test_bpe.c makes the same."""
    state, letters = 5, []
    for _ in range(3000000):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        letters.append("etaoinshr dlucmfw ypvbg "[(state >> 33) % 24])
    return "".join(letters)


def fnv(ids):
    h = 0xcbf29ce484222325
    for i in ids:
        h = (h ^ i) * 0x100000001b3 % 2**64
    return h


def families():
    """Ids of AutoTokenizer on folders like the families' own, for texts with the names that those add."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.path.insert(0, os.path.join(HERE, "..", "..", "engine", "tokenizer"))
    import family_tokenizers
    from transformers import AutoTokenizer

    lines = (english() + MULTILINGUAL * 20).splitlines()
    for family in family_tokenizers.FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            family_tokenizers.build(folder, family, lines, 900 if family in ("gemma", "llama2", "phi3") else 420)
            with open(os.path.join(folder, "tokenizer.json")) as f, open(os.path.join(HERE, family + ".json"), "w") as out:
                json.dump(json.load(f), out, ensure_ascii=False, separators=(",", ":"))
            tok = AutoTokenizer.from_pretrained(folder)
            names = [t["content"] for t in json.load(open(os.path.join(HERE, family + ".json")))["added_tokens"]]
            named = [w for t in names[:4] + names[-4:] for w in ("a" + t + "b", "a  " + t + " \n b" + t + t)] + ["a" + " " * n + "b\n" + "\n" * n for n in (2, 3, 5, 8, 23, 25, 29)]
            named += ["\u2581", "a\u2581b", " \u2581 x", "<0x41><0xE2>", "x" + names[-1] + "\u3000" + names[0] + "é"]
            with open(os.path.join(HERE, family + ".golden"), "w") as f:
                for case in CASES + [t.encode() for t in named]:
                    ids = tok(lossy(case), add_special_tokens=False)["input_ids"]
                    text = tok.decode(ids, clean_up_tokenization_spaces=False)
                    f.write("-\t%s\t%s%s\n" % (case.hex(), " ".join(map(str, ids)), "" if "\ufffd" in text else "\t" + text.encode().hex()))


def normal_forms():
    """A hash for each form of every character between marks of high and low class."""
    characters = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    with open(os.path.join(HERE, "normal.golden"), "w") as f:
        for form in [normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD()]:
            texts = (form.normalize_str("a\u0345" + chr(c) + "\u0334" + chr(c) + "\u0301") for c in characters)
            f.write("%016x\n" % fnv(b for text in texts for b in text.encode()))


def main():
    families()
    if "families" in sys.argv[1:]:
        return
    mask = AddedToken("<mask>", lstrip=True, rstrip=False, special=True)
    chat = [AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)]
    odd = [AddedToken("word", single_word=True), AddedToken("strip", lstrip=True, rstrip=True), AddedToken("cafe\u0301", normalized=True), mask]
    train("gpt2", pre_tokenizers.ByteLevel(add_prefix_space=False), None, 1500, odd, tweak=old_merges)
    train("llama3", split(LLAMA3), None, 1800, chat, post=bos, tweak=whole_words)
    train("qwen", split(QWEN), normalizers.NFC(), 1500, chat + odd)
    train("cased", pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Split(Regex(CASED), "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)]),
          normalizers.Sequence([normalizers.NFKC()]), 800, [])
    sentencepieces()
    normal_forms()


main()
