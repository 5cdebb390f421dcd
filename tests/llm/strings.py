"""Text that tokenizers get wrong: STRINGS, BROKEN (bytes that are no UTF-8), and random text from the same characters.

Random text uses only characters whose class has been the same since Unicode 3.2: the oracles know different versions of Unicode.
"""
import random
import unicodedata

STRINGS = [
    "", " ", "  ", "   ", "\n", "\n\n", "\n\n\n", "\n\n\n\n", "\t", "\t\t", "\r\n", "\r\n\r\n", "\r", " \n", "\n ", " \n \n ", "\t\n\t", "a", " a", "a ", "  a", "a  ",
    "   a   b   ", "a\nb", "a\n\nb", "a \n b", "a\n \nb", "a\n\n\n b", "a\r\nb", "\n\na", "a\n\n", "  \n  a", "    indented\n        more\n\tand tabs\n",
    # words, contractions
    "Hello world", "Hello, world!", "HELLO WORLD", "hElLo", "HelloWorld", "helloWorld123", "don't", "DON'T", "Don'T", "we'll they've I'm you're he'd it's 's 'S",
    "'tis", "'hello", "' s", "''s", "a's's", "'re're", "'ll", "'LL", "'lL", "'Ve", "\u2019s don\u2019t", "'", "''", "'''", "x'", "x'y", "x'll", "x'l", "it's1", "THEY'RE",
    "rock'n'roll", "\u00e9's", "\u4e2d's", "1's", "_'s", " 's", "\n's",
    # numbers
    "0", "1", "12", "123", "1234", "12345", "1234567890", " 1", " 12", " 123", " 1234", "1 2", "1  2", "3.14159", "1,000,000", "-5", "1e10", "0x1F", "2024-01-02", "v1.2.3",
    "a1b2c3", "1a", "a1", "10km", "\u00b2\u00b3\u00b9", "x\u00b2", "\u00bd", "\u2167", "\u2460\u2461", "\u0661\u0662\u0663\u0664", "\u0967\u0968\u0969", "\uff11\uff12\uff13", "\u4e00\u4e8c\u4e09",
    # punctuation, symbols
    ".", "..", "...", "!!!", "?!", "a.b", "a . b", " .", " ...", "(a)", "[b]", "{c}", "<d>", "a/b", "a//b", "/", "//\n", "!\n", "!\n\n", "!\r\n", "! \n", "};\n", "});\n\n", "a/\n/b",
    "#include <stdio.h>", "if (a && b) { return c[i] += 1; }", "x = y * z / w % 3", "http://example.com/a?b=c&d=e#f", "a@b.c", "C:\\path\\file", "$5.00", "50%", "A&B", "a|b", "~`^", "=====", "-----",
    "\u2014", "\u201cquoted\u201d", "\u00ab\u00bb", "\u2026", "\u20ac100", "\u00a3", "\u00a9\u00ae\u2122", "\u2192\u2190", "\u221e\u2260\u2211", "\u2022 item", "\u3001\u3002", "\uff01\uff1f", "\u00a1Hola!", "\u00bfqu\u00e9?",
    # scripts
    "Gr\u00f6\u00dfe \u00dcbermut s\u00fc\u00df", "\u00e9\u00e8\u00ea\u00eb", "e\u0301e\u0300", "na\u00efve caf\u00e9", "\u0130stanbul \u0131\u015f\u0131k", "\u01c5 \u01c8 \u01cb", "\u01c4elo \u01c5elo \u01c6elo", "\u1e9e", "\ufb01 \ufb02",
    "\u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2 \u03a3\u0391\u03a3", "\u041c\u043e\u0441\u043a\u0432\u0430 \u0401\u043b\u043a\u0430", "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\u0645\u064e\u0631\u0652\u062d\u064e\u0628\u064b\u0627",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e", "\u0995\u09be\u0995\u09be \u09ac\u09be\u0982\u09b2\u09be \u09cb\u09cc", "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd \u0b94 \u0bca", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e04\u0e23\u0e31\u0e1a", "\u0eaa\u0eb0\u0e9a\u0eb2\u0e8d\u0e94\u0eb5",
    "\u10d2\u10d0\u10db\u10d0\u10e0\u10ef\u10dd\u10d1\u10d0", "\u0532\u0561\u0580\u0565\u0582", "\u1208\u1230\u120b\u121d", "\u13a0\u13a1\u13a2", "\u1401\u1402", "\u16a0\u16a2", "\u1780\u1798\u17d2\u1796\u17bb\u1787\u17b6",
    "\u4f60\u597d\u4e16\u754c", "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "a\u4e2db\u6587c", "\u3053\u3093\u306b\u3061\u306f", "\u30ab\u30bf\u30ab\u30ca\u30fc", "\u6f22\u5b57\u304b\u306a\u4ea4\u3058\u308a", "\uff76\uff85", "\u304c\u304b\u3099", "\u548c\ufa0e\uf900",
    "\uc548\ub155\ud558\uc138\uc694", "\u1112\u1161\u11ab", "\ud55c\uad6d\uc5b4 \uac00\ub098\ub2e4", "\U00020000\U0002a6d0", "\U0001d400\U0001d41a", "\U00010330\U00010331", "\U00010400\U00010428",
    # emoji, joiners, marks, blanks that are none
    "\U0001f600", "\U0001f600\U0001f601", " \U0001f600", "a\U0001f600b", "\U0001f44d\U0001f3fd", "\u2764\ufe0f", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f3f3\ufe0f\u200d\U0001f308", "\U0001f1e9\U0001f1ea\U0001f1ef\U0001f1f5",
    "1\ufe0f\u20e3", "\u0301", " \u0301", "a\u0301\u0302\u0303", "\u0301a", "A\u0301B", "a\u20ddb", "x\u200dy", "\u200b", "a\u200bb", "\u200e\u200f", "\ufeff", "\ufeffabc", "a\ufeff", "\u00ad", "a\u00adb", "\u2060", "\ufffd", "\ufffe",
    "\u00a0", "a\u00a0b", "\u00a0 \u00a0", "\u2003a", "\u2028", "a\u2029b", "\u3000", "a\u3000b", "\u1680", "\u202f", "\u205f", "\u0085", "a\u0085b", "\u180e", "\v", "a\vb", "\f", "a\fb", "\x1c", "a\x1fb", " \u00a0\n\u3000 x",
    "\x00", "a\x00b", "\x01\x02", "\x7f", "a\x7fb", "\x1b[0m", "\ue000", "\U0010fffd", "\U000e0041",
    # what tokenizers use inside
    "\u2581", "\u2581a", "a\u2581b", " \u2581 ", "\u2581\u2581", "\u0120", "\u0120a", "\u010a", "##a", "##ing", "a##b", "<0x41>", "<0x0A>", "<0x>", "<unk>", "<s>", "</s>", "<s>a</s>", "<pad>", "[UNK]", "[CLS] a [SEP]", "[MASK]", "[ MASK ]",
    "<|endoftext|>", "a<|endoftext|>b", " <|endoftext|> ", "<|endoftext|", "|endoftext|>", "<|endoftext|><|endoftext|>", "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|", "<|im_start|><|im_end", "<<|im_start|>>",
    "<|begin_of_text|>a<|eot_id|>", "<|start_header_id|>user<|end_header_id|>\n\n", "<|start|>user<|message|>hi<|end|>", "<|start|>assistant<|channel|>final<|message|>", "<|return|>", "<|call|>", "<|user|>\nhi<|end|>\n<|assistant|>\n",
    "<start_of_turn>user\nhi<end_of_turn>\n", "<start_of_image>", "a<start_of_image>b", "[INST] hi [/INST]", "<bos><eos>",
    # words of the vocabulary that no merges lead to, and near them
    "the harbour", " harbour", "harbour", " harbours", "tokenizer", " tokenizer", "tokenizers", "ships", " ships", " gulls", " windows",
    # blanks of many lengths before words, numbers, symbols
    *[" " * n + w for n in (2, 3, 4, 5, 8, 15, 16, 17) for w in ("a", "1", "(", "")],
    *["a" + "\n" * n + "b" for n in (3, 4, 5, 6)], "a \t b", "\t a", " \ta", "\ta\t", "a\t\t\tb", "\u00a0a", " \u00a0a", "\u3000\u3000a",
    "The captain counted the ships.\n\tThen he'd 12345 of them;  \"how many?\"\r\n",
    "a" * 99, "a" * 100, "a" * 101, "b" * 300, "ab" * 200, "1" * 50, "!" * 70, "\u4e2d" * 120, "\U0001f600" * 30, " a" * 100,
]

BROKEN = [bytes.fromhex(h) for h in (
    "ff", "80", "c3", "c328", "e282", "e28261", "e2", "f09f98", "f09f", "f0", "f0288cbc", "c0af", "e080af", "f08080af", "eda080", "edb080", "f4908080", "f8888080", "fe", "feff",
    "61ff62", "61c3", "6120c3a9c3", "20ff20", "ffffff", "0aff0a", "c3a9ff", "e4b8ade4b8", "e4b8ff61", "31ff32", "27ff73", "808080", "f09f9880f09f98", "61e28280b0", "00ff00", "c3a9c3a9c3", "ff27732066ff")]

POOLS = [
    "abcdefghijklmnopqrstuvwxyz" * 2 + "ABCDEFGHIJ" + " " * 12, " \n\t\r  \u00a0\u3000", "'s't're've'm'll'd'S'T", "0123456789", ".,;:!?()[]{}<>/\\|@#$%^&*-_=+~`\"'",
    "\u00e4\u00f6\u00fc\u00df\u00e9\u00e8\u00f1\u00e7\u0142\u017c\u0131\u0130", "\u03b1\u03b2\u03b3\u03c3\u03c2\u03a3\u0430\u0431\u0432\u0416\u0429", "\u05d0\u05d1\u0628\u0627\u064e\u0652", "\u0915\u093e\u094d\u0937\u093f\u0e01\u0e34\u0e49",
    "\u4e2d\u6587\u3042\u30a2\uac00\ud55c", "\u0301\u0302\u0308\u200d\ufe0f\u20dd", "\u00b2\u00bd\u2167\u0661", "\u20ac\u2192\u2211\u2603\u2014\u201c\u201d"]
WORDS = ["the", " the", " captain", "counting", " tokenizer", "harbour", " harbour", "ships", "\n\n", "    ", "<|im_start|>", "<|endoftext|>", "</s>", "[SEP]", "<start_of_turn>", "don't", " They're",
         "12345", "\u2581", "\U0001f600", "\U0001f468\u200d\U0001f469", " ...", "!\n", "\r\n"]


def stable():
    """Characters (blanks and control characters left out) with one class in every version of Unicode since 3.2."""
    old = unicodedata.ucd_3_2_0.category
    skip = {"Cn", "Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    return [chr(cp) for cp in range(0x110000) if old(chr(cp)) not in skip and old(chr(cp)) == unicodedata.category(chr(cp))]


def random_strings(n, seed=1):
    r = random.Random(seed)
    anything = stable()
    for _ in range(n):
        parts = []
        pools = r.sample(POOLS, r.randint(1, 3))
        for _ in range(r.randint(1, 40)):
            kind = r.random()
            parts.append(r.choice(WORDS) if kind < 0.12 else r.choice(anything) if kind < 0.2 else r.choice(r.choice(pools)))
        yield "".join(parts)


def random_bytes(n, seed=2):
    """Text with bytes missing, wrong or in the middle."""
    r = random.Random(seed)
    for text in random_strings(n, seed):
        data = bytearray(text.encode("utf-8"))
        for _ in range(r.randint(1, 4)):
            at = r.randrange(len(data) + 1)
            if r.random() < 0.5:
                del data[at:at + r.randint(1, 2)]
            else:
                data.insert(at, r.randrange(0x80, 0x100))
        yield bytes(data)
