"""Tokenizers of the PyPI packages tokenizers and sentencepiece, built from the vocabulary in a GGUF file, and jinja2 for chats.

    oracle = Oracle(path)
    oracle.encode(text, special=False)     ids, without bos and eos; special: names of control tokens become those
    oracle.render(messages, True)          the chat as the template in the file says

For SentencePiece the model that the vocabulary came from is next to the file, with the ending .model (make_models.py).
"""
import functools
import os
import re
import time

import gguf
import jinja2
import jinja2.sandbox
import sentencepiece
import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE_MARK = "\u2581"

# Expressions of the pre-tokenizers as the models' own tokenizer.json files have them, less the case folding of (?i:...), which
# would take U+017F for an s.
ANY_CASE = "'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"
LLAMA3 = ANY_CASE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+(?:{ANY_CASE})?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*(?:{ANY_CASE})?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PRE = {  # name: (expressions, each splits what the one before left; a piece that is a token is taken whole)
    "gpt-2": ([GPT2], False),
    "smollm": ([r"\p{N}", GPT2], False),
    "llama-bpe": ([LLAMA3], True),
    "qwen2": ([LLAMA3.replace("{1,3}", "")], False),
    "gpt-4o": ([O200K], False),
    "tekken": ([TEKKEN], True),
}


@functools.lru_cache(maxsize=1)
def byte_chars():
    """The character that stands for each byte in byte-level vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    chars = {b: chr(b) for b in printable}
    for i, b in enumerate(b for b in range(256) if b not in chars):
        chars[b] = chr(256 + i)
    return chars


def fields(path):
    reader = gguf.GGUFReader(path)
    return {key: field.contents() for key, field in reader.fields.items() if key.startswith(("tokenizer.", "general."))}


class Oracle:
    def __init__(self, path):
        f = self.fields = fields(path)
        self.path = path
        self.kind = f["tokenizer.ggml.model"]
        self.tokens = f["tokenizer.ggml.tokens"]
        self.types = f.get("tokenizer.ggml.token_type", [NORMAL] * len(self.tokens))
        self.vocabulary = set(self.tokens)
        # names that are taken out of the text first: longest first
        self.names = {t: i for i, t in enumerate(self.tokens) if self.types[i] in (UNKNOWN, CONTROL, USER_DEFINED)}
        self.always = {t for t, i in self.names.items() if self.types[i] == USER_DEFINED}
        build = {"gpt2": self.build_bpe, "bert": self.build_wordpiece, "llama": self.build_sentencepiece}[self.kind]
        build()

    # ---- building ----
    def build_bpe(self):
        expressions, whole = PRE[self.fields["tokenizer.ggml.pre"]]
        merges = [tuple(m.split(" ", 1)) for m in self.fields["tokenizer.ggml.merges"]]
        vocab = {t: i for i, t in enumerate(self.tokens)}
        tokenizer = tokenizers.Tokenizer(models.BPE(vocab, merges, ignore_merges=whole))
        steps = [pre_tokenizers.Split(Regex(e), "isolated") for e in expressions]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        self.plain = lambda text: tokenizer.encode(text, add_special_tokens=False).ids

    def build_wordpiece(self):
        """The converter took ## away and put U+2581 before the others: back."""
        names = {}
        for i, t in enumerate(self.tokens):
            names[t if self.types[i] != NORMAL else t[1:] if t.startswith(SPACE_MARK) else "##" + t] = i
        unknown = self.tokens[self.fields["tokenizer.ggml.unknown_token_id"]]
        tokenizer = tokenizers.Tokenizer(models.WordPiece(names, unk_token=unknown, max_input_chars_per_word=100))
        lower = self.fields.get("tokenizer.ggml.normalizer.lowercase", True)
        strip = self.fields.get("tokenizer.ggml.normalizer.strip_accents", lower)
        tokenizer.normalizer = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=strip, lowercase=lower)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self.plain = lambda text: tokenizer.encode(text, add_special_tokens=False).ids

    def build_sentencepiece(self):
        model = sentencepiece.SentencePieceProcessor(model_file=os.path.splitext(self.path)[0] + ".model")
        assert [model.id_to_piece(i) for i in range(model.vocab_size())] == self.tokens
        self.plain = model.encode

    # ---- encoding ----
    def encode(self, text, special=False):
        """Ids of the text alone. Names of tokens are taken out first, then every rest is encoded on its own."""
        names = sorted(self.names if special else self.always, key=lambda t: (-len(t.encode()), self.names[t]))
        if not names:
            return list(self.plain(text))
        ids = []
        for part in re.split("(" + "|".join(map(re.escape, names)) + ")", text):
            if part:
                ids += [self.names[part]] if part in names else self.plain(part)
        return ids

    def ends(self):
        """(ids before, ids after) that add_special means."""
        f = self.fields

        def number(key, default=None):
            value = f.get(f"tokenizer.ggml.{key}", default)
            return [value] if value is not None else []
        if self.kind == "bert":
            return number("bos_token_id", 101), number("seperator_token_id", 102)
        adds = self.kind == "llama" or f.get("tokenizer.ggml.pre") in ("llama-bpe", "tekken")
        add_bos = f.get("tokenizer.ggml.add_bos_token", adds)
        add_eos = f.get("tokenizer.ggml.add_eos_token", False)
        return number("bos_token_id", 1 if self.kind == "llama" else None) if add_bos else [], number("eos_token_id") if add_eos else []

    # ---- chats ----
    def render(self, messages, is_open):
        env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

        def fail(text):
            raise ValueError(text)
        f = self.fields
        name = lambda key: self.tokens[f[key]] if key in f else ""
        return env.from_string(f["tokenizer.chat_template"]).render(
            messages=messages, add_generation_prompt=is_open, raise_exception=fail, strftime_now=lambda form: time.strftime(form, time.gmtime()),
            bos_token=name("tokenizer.ggml.bos_token_id"), eos_token=name("tokenizer.ggml.eos_token_id"))
