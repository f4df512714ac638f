"""Tokenizers shaped as the families' published ones: small vocabularies, but the same normalizer, pre-tokenizer, decoder, post-processor,
kinds of added tokens and tokenizer_class. Nothing is fetched. tests/golden/text/make.py and interop_autotokenizer.py use them.

    build(folder, family, lines, vocabulary=1500)    # tokenizer.json, tokenizer_config.json, config.json, perhaps tokenizer.model
"""
import io
import json
import os

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

MARK = "\u2581"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + REST
# as tiktoken writes it since 0.7
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
UPPER, LOWER, CONTRACTION = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = "|".join([r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + CONTRACTION, r"[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*" + CONTRACTION,
                  r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def special(text, **how):
    return AddedToken(text, special=True, normalized=False, **how)


def plain(text, normalized=False):
    return AddedToken(text, special=False, normalized=normalized)


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior, invert), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def sentencepiece_bpe(lines, vocabulary, **how):
    """A model's bytes, its vocabulary and its merges, each cut of a piece into two pieces in the order of scores."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=out, model_type="bpe", vocab_size=vocabulary, byte_fallback=True, split_digits=True,
                                             normalization_rule_name="identity", remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, num_threads=1,
                                             minloglevel=2, **how)
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(out.getvalue())
    vocab = {p.piece: i for i, p in enumerate(proto.pieces)}
    merges = []
    for i, p in enumerate(proto.pieces):
        if p.type in (1, 4):  # normal, user-defined
            cuts = [(p.piece[:k], p.piece[k:]) for k in range(1, len(p.piece)) if p.piece[:k] in vocab and p.piece[k:] in vocab]
            merges += [(-p.score, vocab[a], vocab[b], a, b) for a, b in cuts]
    return out.getvalue(), vocab, [(a, b) for _, _, _, a, b in sorted(merges)]


def template(tok, bos):
    return processors.TemplateProcessing(single=bos + " $A", pair=bos + " $A " + bos + ":1 $B:1", special_tokens=[(bos, tok.token_to_id(bos))])


def of_characters(vocab, merges, prefix):
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    marks = normalizers.Replace(" ", MARK)
    tok.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), marks]) if prefix else marks
    tok.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()] + ([decoders.Strip(" ", 1, 0)] if prefix else []))
    return tok


def gemma(lines, vocabulary):
    turns = ["<start_of_turn>", "<end_of_turn>"]
    names = dict(pad_id=0, eos_id=1, bos_id=2, unk_id=3, bos_piece="<bos>", eos_piece="<eos>")
    runs = ["\n" * n for n in (2, 3, 4)] + ["\t" * n for n in (2, 3)]
    user = ["<mask>", "<unused0>"] + turns + runs + [MARK * n for n in (2, 3, 4, 5, 6, 7, 8)] + ["<table>", "</table>", "<h1>"]
    data, vocab, merges = sentencepiece_bpe(lines, vocabulary, add_dummy_prefix=False, user_defined_symbols=user, **names)
    tok = of_characters(vocab, merges, False)
    tok.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tok.add_special_tokens([special(t) for t in ["<pad>", "<eos>", "<bos>", "<unk>"] + turns])
    tok.add_tokens([plain(t) for t in user if t not in turns])
    tok.post_processor = template(tok, "<bos>")
    return tok, dict(tokenizer_class="GemmaTokenizer", bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>"), data


def phi3(lines, vocabulary):
    data, vocab, merges = sentencepiece_bpe(lines, vocabulary)
    tok = of_characters(vocab, merges, True)
    tok.add_special_tokens([special("<unk>"), special("<s>"), special("</s>", rstrip=True)])
    tok.add_special_tokens([special("<|endoftext|>")] + [special(t, rstrip=True) for t in ["<|assistant|>", "<|placeholder1|>", "<|system|>", "<|end|>", "<|user|>"]])
    return tok, dict(tokenizer_class="LlamaTokenizer", legacy=False, bos_token="<s>", eos_token="<|endoftext|>", pad_token="<|endoftext|>", unk_token="<unk>",
                     add_bos_token=False, add_eos_token=False), data


def llama2(lines, vocabulary):
    """As transformers 5 saves it: no normalizer, but Metaspace, which puts a mark in front of a text only."""
    data, vocab, merges = sentencepiece_bpe(lines, vocabulary)
    tok = of_characters(vocab, merges, True)
    tok.normalizer = normalizers.Sequence([])
    spec = json.loads(tok.to_str())
    spec["normalizer"] = None
    tok = Tokenizer.from_str(json.dumps(spec))
    tok.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="first", split=False)
    tok.add_special_tokens([special("<unk>"), special("<s>"), special("</s>")])
    tok.add_tokens([plain("<mark>"), AddedToken("<any>", normalized=True)])
    tok.post_processor = template(tok, "<s>")
    return tok, dict(tokenizer_class="LlamaTokenizer", legacy=False, bos_token="<s>", eos_token="</s>", unk_token="<unk>"), data


def bytes_bpe(lines, vocabulary, pre_tokenizer, first, normalizer=None):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer, tok.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer:
        tok.normalizer = normalizer
    tok.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, special_tokens=first))
    return tok


def pythia(lines, vocabulary):
    tok = bytes_bpe(lines, vocabulary, pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True), ["<|endoftext|>", "<|padding|>"], normalizers.NFC())
    tok.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=True)
    tok.add_tokens([plain(" " * n, normalized=True) for n in range(24, 1, -1)])
    return tok, dict(tokenizer_class="GPTNeoXTokenizer", add_prefix_space=False, bos_token="<|endoftext|>", eos_token="<|endoftext|>", unk_token="<|endoftext|>"), None


def phi4(lines, vocabulary):
    tok = bytes_bpe(lines, vocabulary, split(CL100K, "removed", True), [])
    tok.post_processor = processors.ByteLevel(add_prefix_space=True, trim_offsets=False)
    tok.add_special_tokens([special(t, lstrip=True, rstrip=True) for t in ["<|dummy_0|>", "<|endoftext|>", "<|fim_prefix|>", "<|im_start|>", "<|im_end|>", "<|im_sep|>"]])
    return tok, dict(tokenizer_class="GPT2Tokenizer", add_prefix_space=False, bos_token="<|endoftext|>", eos_token="<|im_end|>", pad_token="<|dummy_0|>"), None


def phi4_mini(lines, vocabulary):
    tok = bytes_bpe(lines, vocabulary, split(O200K, "removed", True), [])
    tok.post_processor = processors.ByteLevel(add_prefix_space=True, trim_offsets=False)
    tok.add_special_tokens([special("<|endoftext|>")] + [special(t, rstrip=True) for t in ["<|assistant|>", "<|end|>", "<|user|>"]])
    return tok, dict(tokenizer_class="GPT2Tokenizer", add_prefix_space=False, bos_token="<|endoftext|>", eos_token="<|endoftext|>", unk_token="<|endoftext|>"), None


def smollm3(lines, vocabulary):
    tok = bytes_bpe(lines, vocabulary, split(LLAMA3), [])
    tok.add_special_tokens([special(t) for t in ["<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>"]])
    tok.add_tokens([plain("<think>"), plain("</think>")])
    spec = json.loads(tok.to_str())
    spec["model"]["ignore_merges"] = True
    tok = Tokenizer.from_str(json.dumps(spec))
    return tok, dict(tokenizer_class="PreTrainedTokenizerFast", bos_token=None, eos_token="<|im_end|>", pad_token="<|im_end|>"), None


def granite(lines, vocabulary):
    pre = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)])
    names = ["<|end_of_text|>", "<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<filename>", "<reponame>"]
    tok = bytes_bpe(lines, vocabulary, pre, names)
    tok.post_processor = processors.ByteLevel(add_prefix_space=True, trim_offsets=False)
    tok.add_special_tokens([special(t) for t in ["<|start_of_role|>", "<|end_of_role|>", "<|tool_call|>"]])
    return tok, dict(tokenizer_class="GPT2Tokenizer", add_prefix_space=False, bos_token="<|end_of_text|>", eos_token="<|end_of_text|>", unk_token="<|end_of_text|>"), None


def olmo2(lines, vocabulary):
    tok = bytes_bpe(lines, vocabulary, split(LLAMA3, "removed", True), [])
    tok.post_processor = processors.ByteLevel(add_prefix_space=True, trim_offsets=False)
    tok.add_tokens([plain(t) for t in ["|||PHONE_NUMBER|||", "|||EMAIL_ADDRESS|||", "|||IP_ADDRESS|||"]])
    tok.add_special_tokens([special(t) for t in ["<|endoftext|>", "<|fim_prefix|>", "<|endofprompt|>", "<|pad|>"]])
    return tok, dict(tokenizer_class="GPT2Tokenizer", add_prefix_space=False, bos_token="<|endoftext|>", eos_token="<|endoftext|>", unk_token="<|endoftext|>", pad_token="<|pad|>"), None


# family: who makes it, transformers' model_type of a folder that has it
FAMILIES = {"gemma": (gemma, "gemma3_text"), "llama2": (llama2, "llama"), "phi3": (phi3, "phi3"), "phi4": (phi4, "phi3"), "phi4-mini": (phi4_mini, "phi3"), "pythia": (pythia, "gpt_neox"),
            "smollm3": (smollm3, "smollm3"), "granite": (granite, "granite"), "olmo2": (olmo2, "olmo2")}


def build(folder, family, lines, vocabulary=1500):
    """The folder as the family publishes it, with a tokenizer.model where it has one."""
    make, kind = FAMILIES[family]
    tok, config, data = make(lines, vocabulary)
    os.makedirs(folder, exist_ok=True)
    tok.save(os.path.join(folder, "tokenizer.json"))
    added = {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in json.loads(tok.to_str())["added_tokens"]}
    for name, value in [("tokenizer_config.json", dict(config, added_tokens_decoder=added)), ("config.json", dict(model_type=kind))]:
        with open(os.path.join(folder, name), "w") as f:
            json.dump(value, f, indent=1)
    if data:
        with open(os.path.join(folder, "tokenizer.model"), "wb") as f:
            f.write(data)
