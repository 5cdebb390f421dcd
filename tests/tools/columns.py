#!/usr/bin/env python3
"""Brings a C or CUDA file to 120 columns.

    columns.py FILE...            rewrites the files and lists the lines that it leaves too long
    columns.py --check FILE...    only says how many lines are too long (exit 1 if any)
    columns.py --functions N FILE...    lists the functions of more than N lines

Lines of at most 120 columns stay, except those that continue the paragraph, statement or macro of a longer one. The tokens of the code stay:
they are compared before and after, without blanks and comments, adjacent string literals joined. A file that would differ is not written.

  - comment: the paragraph is wrapped again from the long line on; a row of a table continues under its last column
  - comment at the end of code: moves to a separate line above the code
  - code: `{ ... }` on one line is opened, then the line breaks where a reader breaks it (BREAKS), continued 4 columns further in
  - macro: the same, and the backslashes stand in one column if they did
"""
import copy
import functools
import re
import sys

LIMIT = 120
TOKEN = re.compile(r"""
    (?P<comment>//[^\n]*|/\*.*?\*/)
  | (?P<string>R"\(.*?\)"|"(?:\\.|[^"\\\n])*")
  | (?P<char>'(?:\\.|[^'\\\n])*')
  | (?P<join>\\\n)
  | (?P<newline>\n)
  | (?P<blank>[ \t]+)
  | (?P<number>\.?[0-9](?:[eEpP][+-]|[0-9a-zA-Z_.])*)
  | (?P<word>[A-Za-z_]\w*)
  | (?P<sign><<=|>>=|\.\.\.|->|::|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\#\#|.)
""", re.X | re.S)
OPENS, CLOSES = {"(": ")", "[": "]", "{": "}", "<": ">"}, {")", "]", "}", ">"}
ASSIGN = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
# What a break costs more than a comma of the same bracket level: after these tokens
BREAKS = {",": 0, ";": 0, "&&": 0, "||": 0, "=": 25, "+": 35, "-": 35, "|": 40, "^": 40, "==": 45, "!=": 45, "<": 45, ">": 45, "<=": 45,
          ">=": 45, "/": 42, "%": 42, "<<": 45, ">>": 45, "*": 300, "&": 300, "(": 40, "{": 40}
LEVEL, LINE = 45, 100  # of each bracket around it; of each line


class Token:
    """One token of code; `before` are the blanks between it and the one before it on its line."""

    def __init__(self, kind, text, before, line):
        self.kind, self.text, self.before, self.line = kind, text, before, line
        self.depth = 0       # brackets around it, within its statement line
        self.is_block = False  # { of a block, of a lambda or of a struct, not of values; its } likewise
        self.is_angle = False  # < or > of a template
        self.is_call = False   # ( after a name
        self.has_statement = False  # { with a statement in it: values in a macro have none


def lex(text):
    return [(m.lastgroup, m.group(), m.start()) for m in TOKEN.finditer(text)]


def stream(text):
    """What the compiler reads: tokens, and where directives end."""
    out, is_directive, at_start = [], False, True
    for kind, t, _ in lex(text):
        if kind == "newline":
            if is_directive:
                out.append("\n")
            is_directive, at_start = False, True
        elif kind in ("blank", "comment", "join"):
            continue
        else:
            is_directive = is_directive or (at_start and t == "#")
            at_start = False
            if kind == "string" and out and out[-1].endswith('"') and out[-1].startswith('"') and t.startswith('"'):
                out[-1] = out[-1][:-1] + t[1:]
            else:
                out.append(t)
    return out


class Source:
    """The lines of a file with their code tokens and brackets."""

    def __init__(self, text):
        self.lines = text.split("\n")
        n = len(self.lines)
        self.code = [[] for _ in range(n)]   # tokens of each line
        self.tail = [None] * n               # (column, text) of a // comment after code
        self.kind = [""] * n                 # "comment": a // line, "block": inside /* */, "directive", "raw"
        self.stack = [()] * n                # open brackets at the start of the line
        line, start, blanks, is_directive = 0, 0, "", False
        stack, outer, previous = [], [], None
        for kind, t, at in lex(text):
            if kind in ("newline", "join"):
                if kind == "newline" and is_directive:
                    is_directive, stack = False, outer
                line, start, blanks = line + 1, at + len(t), ""
                if line < n:
                    self.stack[line] = tuple(stack)
                    self.kind[line] = "directive" if is_directive else ""
            elif kind == "blank":
                blanks = t
            elif kind == "comment":
                if t.startswith("//"):
                    if self.code[line]:
                        self.tail[line] = (at - start, t)
                    else:
                        self.kind[line] = "comment"
                else:
                    n_more = t.count("\n")
                    if n_more == 0 and (is_directive or self.code[line] or not self.lines[line].rstrip().endswith("*/")):
                        self.code[line].append(Token("comment", t, blanks, line))
                    for k in range(line, line + n_more + 1):
                        if not self.code[k]:
                            self.kind[k] = "block" if not is_directive else "directive"
                        self.stack[k] = tuple(stack) if k > line else self.stack[k]
                    if n_more:
                        line, start = line + n_more, at + t.rindex("\n") + 1
                blanks = ""
            else:
                if t == "#" and not self.code[line] and not is_directive:
                    is_directive, outer, stack = True, stack, []
                    self.kind[line] = "directive"
                token = Token(kind, t, blanks, line)
                previous = self.bracket(stack, token, previous, is_directive)
                self.code[line].append(token)
                blanks = ""
                if "\n" in t:
                    for k in range(line, line + t.count("\n") + 1):
                        self.kind[k] = "raw"
                    line, start = line + t.count("\n"), at + t.rindex("\n") + 1

    @staticmethod
    def bracket(stack, token, previous, is_directive):
        t = token.text
        if token.kind == "sign" and t == "<" and previous is not None and previous.kind == "word":
            token.is_angle = token.before == "" or previous.text == "template"
        if token.kind == "sign" and (t in "([{" or token.is_angle):
            if t == "(":
                token.is_call = previous is not None and (previous.kind == "word" or previous.text in (">", ")", "]"))
            if t == "{":
                token.is_block = Source.opens_block(stack, previous)
            stack.append(token)
        elif token.kind == "sign" and t in (")", "]", "}"):
            while stack and stack[-1].is_angle:
                stack.pop().is_angle = False
            if stack:
                token.opener = stack.pop()
                if not token.opener.has_statement and t == "}" and token.opener is not previous:
                    token.opener.is_block = token.opener.is_block and not is_directive
                token.is_block = token.opener.is_block
                if token.is_block and stack:
                    stack[-1].has_statement = True
        elif token.kind == "sign" and t in (">", ">>") and stack and stack[-1].is_angle:
            for _ in t:
                if stack and stack[-1].is_angle:
                    token.is_angle = True
                    stack.pop()
        elif token.kind == "sign" and (t in (";", "&&", "||") or t in ASSIGN):
            if stack and t == ";":
                stack[-1].has_statement = True
            if t != "=":
                while stack and stack[-1].is_angle:
                    stack.pop().is_angle = False
        token.previous = previous
        return token

    @staticmethod
    def opens_block(stack, previous):
        """Whether a { begins statements or members."""
        if previous is None or previous.text in (";", ":", "else", "do", "extern", "const", "try", "noexcept"):
            return True
        if previous.text in ("{", "}"):
            return previous.is_block or not stack or stack[-1].is_block
        if previous.text == ")":
            before = getattr(previous, "opener", previous).previous
            return before is not None and before.text != "return" and (before.kind == "word" or before.text in (">", ")", "]"))
        if previous.kind == "string":
            return True  # extern "C" {
        at, angles = previous, 0
        for _ in range(60):  # the head of a struct, with its template arguments
            if at is None or at.text in (";", "{", "}", "=") or (angles == 0 and at.text in ("(", ",", ")", "return")):
                return False
            if angles == 0 and at.text in ("struct", "union", "namespace", "class"):
                return True
            angles += {">": 1, ">>": 2, "<": -1}.get(at.text, 0) if at.is_angle else 0
            at = at.previous
        return False


def spaces(line):
    return len(line) - len(line.lstrip(" "))


# ---- comments


FIRST = re.compile(r"(?:[-*+|=<>] |\d+[.)] |>>|---|===|NOTE\(|@)")


def comment_parts(line, is_block):
    """(what stands before the text, text)"""
    m = re.match(r"( *)(.*)$" if is_block else r"( *// *)(.*)$", line)
    return m.group(1), m.group(2)


def wrap(words, first, rest):
    """Lines of the words; a word that would begin a list item or a table row is kept from beginning a line."""
    out, line, row = [], first, []
    for w in words:
        if row and len(line + " ".join(row + [w])) > LIMIT:
            n = len(row)
            while n > 1 and FIRST.match((row + [w])[n] + " "):
                n -= 1
            out.append(line + " ".join(row[:n]))
            line, row = rest, row[n:]
        row.append(w)
    return out + [line + " ".join(row)]


def reflow_comment(lines, i, end, is_block):
    """The long comment line i and the lines of its paragraph, before line `end`: (new lines, number of old lines); None: left."""
    lead, text = comment_parts(lines[i], is_block)
    runs = [m for m in re.finditer(r"(?<=\S) {2,}(?=\S)", text)]
    is_item = FIRST.match(text)
    if re.match(r"[-=*]{6,}|.*[-=]{12,}$", text) or (is_block and re.search(r"[=(].*[;{}]$|[{}\\]$", text)):
        return None
    hang = len(lead)
    if runs:
        hang = len(lead) + runs[-1].end()
        if len(runs) == 1 and hang > 60 and len(lead) + runs[0].start() <= LIMIT and len(lead) + len(text) - runs[0].end() <= LIMIT:
            return [lead + text[:runs[0].start()], lead + text[runs[0].end():]], 1
        if hang > 100:
            return None
    elif is_item:
        hang = len(lead) + is_item.end()
    if not runs and i + 1 < end:  # "label: text" whose text continues under itself
        below = len(comment_parts(lines[i + 1], is_block)[0])
        hang = below if len(lead) < below < 40 and lines[i][below - 2:below] == ": " else hang
    rest = lead + " " * (hang - len(lead))
    if runs:  # the columns stay: only the words after the last one are wrapped
        fixed, words = lead + text[:runs[-1].end()], text[runs[-1].end():].split()
    else:
        fixed, words = lead, text.split()
    j = i + 1
    if runs and j < end:  # the next line has text in the columns before: the words that do not fit go to its end
        below = lines[j]
        new = wrap(words, fixed, rest)
        if re.search(r"\S {2,}\S", below[len(lead):]) and below.startswith(lead + " ") and len(below) <= hang - 2 and len(new) == 2:
            return [new[0], below.ljust(hang) + new[1].strip("/ ")], 2
    while j < end:
        next_lead, next_text = comment_parts(lines[j], is_block)
        if next_text == "" or len(next_lead) != hang or FIRST.match(next_text) or re.search(r"\S {2,}\S", next_text):
            break
        if not runs and j > i + 1 and re.search(r"[.:]$", lines[j - 1]) and len(lines[j - 1]) + 1 + len(next_text.split()[0]) <= LIMIT - 8:
            break  # the author ended the line there
        words += next_text.split()
        j += 1
    new = wrap(words, fixed, rest)
    return None if any(len(line) > LIMIT for line in new) else (new, j - i)


# ---- code


def depths(tokens):
    """Sets each token's bracket level within the line; lambdas and blocks count as brackets."""
    d = 0
    for t in tokens:
        if t.kind == "sign" and (t.text in ")]}" or (t.is_angle and t.text[0] == ">")):
            d = max(0, d - (len(t.text) if t.is_angle else 1))
        t.depth = d
        if t.kind == "sign" and (t.text in "([{" or (t.is_angle and t.text == "<")):
            d += 1


def render(tokens):
    return "".join((t.before if k else "") + t.text for k, t in enumerate(tokens))


def is_binary(tokens, i):
    """An operator with blanks on both sides."""
    return tokens[i].before != "" and i + 1 < len(tokens) and tokens[i + 1].before != "" and i > 0


def candidates(tokens):
    """{i: (cost, kind)} of breaks before token i."""
    out = {}
    chain, open_marks = {}, {}  # of each level: index of the first ? of a chain, number of ? without their :
    group, n_groups, opened = [], 0, [0]
    for t in tokens:  # the bracket that each token stands in
        closes = t.kind == "sign" and (t.text in ")]}" or (t.is_angle and t.text[0] == ">"))
        for _ in range(len(t.text) if closes and t.is_angle else closes):
            opened = opened[:-1] if len(opened) > 1 else opened
        group.append(opened[-1])
        if t.kind == "sign" and (t.text in "([{" or (t.is_angle and t.text == "<")):
            n_groups += 1
            opened = opened + [n_groups]
    has = {(g, t.text) for g, t in zip(group, tokens) if t.kind == "sign"}
    launch_bounds, k = set(), 0  # tokens between the brackets of __launch_bounds__
    while k < len(tokens):
        if tokens[k].text == "__launch_bounds__":
            d = tokens[k].depth
            k += 2
            while k < len(tokens) and tokens[k].depth > d:
                launch_bounds.add(k)
                k += 1
        k += 1
    for i, t in enumerate(tokens):
        d = t.depth
        for k in [k for k in open_marks if k > d]:
            del open_marks[k]
        for k in [k for k in chain if k > d]:
            del chain[k]
        if t.kind == "sign" and t.text in (",", ";"):
            open_marks.pop(d, None)
            chain.pop(d, None)
        if i == 0 or t.kind == "comment":
            continue
        p = tokens[i - 1]
        cost, kind = None, ""
        if t.kind == "sign" and t.text == "?":
            if d not in chain:
                chain[d] = i
            open_marks.setdefault(d, []).append(i)
            cost, kind = (30 if chain[d] == i else 70) + (50 if d > 0 else 0), "?"
        elif t.kind == "sign" and t.text == ":" and open_marks.get(d):
            mark = open_marks[d].pop()
            cost, kind = (8 if chain[d] == mark else 60) + (40 if d > 0 else 0), ("colon", chain[d])
        elif t.kind == "sign" and t.text == ":" and p.text == ")" and d == 0:
            cost = 10  # members of a constructor
        elif t.kind == "sign" and t.text == ":" and d > 0 and t.before:
            cost = 5   # operands of asm
        elif t.text == "::" and p.kind == "string":
            cost = 5
        elif t.kind == "word" and p.text == ")" and d == 0 and launch_bounds:
            cost = 20  # the name of a kernel
        elif t.text == "__launch_bounds__":
            cost = 60
        elif p.kind == "string" and t.kind == "string":
            cost = 0 if t.text.startswith('"{') or "{%" not in p.text + t.text else 30
        elif p.kind == "sign" and p.text in (",", ";") and t.text not in (")", "}"):
            cost = 0
        elif p.kind == "sign" and p.text in ("(", "{") and t.text not in (")", "}", ";"):
            if p.text == "{" and p.is_block:
                continue
            before = tokens[i - 2] if i > 1 else None
            if p.text == "(" and before is not None and before.text in ("if", "while", "for", "switch", "sizeof"):
                continue
            cost = (BREAKS[p.text] if p.text == "{" or p.is_call else 90) + (200 if d > 1 else 0)
        elif p.kind == "sign" and p.text in ASSIGN:
            if t.text in ("{", ";", ")", ","):
                continue
            length = len(render(tokens[:i]))
            cost = 25 + (40 if length < 14 else 0)
        elif p.kind == "sign" and p.text in BREAKS and not p.is_angle and p.text not in "({,;" and is_binary(tokens, i - 1):
            g = group[i - 1]
            is_factor = tokens[i - 2].text in (")", "]") or tokens[i - 2].kind == "number"  # else * may declare a pointer
            cost = 42 if p.text == "*" and is_factor and t.text not in (")", ",", "const") else BREAKS[p.text]
            cost += 15 if p.text == "&&" and (g, "||") in has else 0
            cost += (100 if (g, "?") in has else 0) + (15 if (g, ",") in has else 0)
            if p.text not in ("&&", "||"):
                cost += 60 if (g, "&&") in has or (g, "||") in has else 0
            kind = "and" if p.text in ("&&", "||") else ""
        if cost is None:
            continue
        inner = d + (1 if t.kind == "sign" and t.text in ")]}" else 0)
        cost += 100 if i in launch_bounds else 0
        out[i] = (cost + LEVEL * inner, kind, inner)
    return out


def best_breaks(tokens, first, cont, is_return, width, deeper=0):
    """The cheapest lines of at most `width` columns; None: there are none."""
    depths(tokens)
    found = None
    levels = sorted({c[2] for c in candidates(tokens).values()})
    for least in reversed(levels[:4]):
        lines = search_breaks(tokens, first, cont, is_return, width, least, deeper or cont + 4)
        if lines is not None and (found is None or lines[0] < found[0]):
            found = lines
    return None if found is None else found[1]


def search_breaks(tokens, first, cont, is_return, width, least, deeper):
    cand = {i: c for i, c in candidates(tokens).items() if c[2] >= least}
    n = len(tokens)
    starts, at = [], 0
    for k, t in enumerate(tokens):
        at += (len(t.before) if k else 0)
        starts.append(at)
        at += len(t.text)
    ends = [s + len(t.text) for s, t in zip(starts, tokens)]

    def indent_of(j, i, indent, marks):
        kind, d = cand[j][1], cand[j][2]
        if isinstance(kind, tuple):
            mark = kind[1]
            for index, column in marks:
                if index == mark:
                    return column
            if mark >= i:
                return indent + starts[mark] - starts[i]
        if kind == "and" and d == 0 and is_return:
            return first + 7
        if first == cont:  # the line continues a statement
            return cont if d == 0 else max(deeper, cont + 1)
        return cont + (4 if d > least else 0)

    @functools.lru_cache(maxsize=None)
    def best(i, indent, marks):
        length = indent + ends[n - 1] - starts[i]
        out = None
        if length <= width:
            out = ((10 if length - indent < 12 else 0), (), ())
        for j in sorted(cand):
            if j <= i:
                continue
            used = indent + ends[j - 1] - starts[i]
            if used > width:
                break
            below = indent_of(j, i, indent, marks)
            if below > 80:
                continue
            open_marks = tuple((k, indent + starts[k] - starts[i]) for k in cand if i <= k < j and cand[k][1] == "?") + marks
            later = best(j, below, open_marks)
            if later is None:
                continue
            cost = later[0] + LINE + cand[j][0] + (width - used) * 0.15
            if out is None or cost < out[0]:
                out = (cost, ((j, below),) + later[1], ())
        return out

    sys.setrecursionlimit(10000)
    answer = best(0, first, ())
    if answer is None or not answer[1]:
        return None
    rows, at, indent = [], 0, first
    for j, below in answer[1] + ((n, 0),):
        rows.append((indent, tokens[at:j]))
        at, indent = j, below
    return answer[0], rows


def split_strings(tokens):
    """The tokens with long literals cut at blanks into literals of about 40 characters."""
    out = []
    for t in tokens:
        if t.kind != "string" or len(t.text) < 50 or not t.text.startswith('"'):
            out.append(t)
            continue
        pieces, piece = [], ""
        for word in re.findall(r"[^ ]* *", t.text[1:-1]):
            piece += word
            if len(piece) >= 12 and piece.endswith(" "):
                pieces.append(piece)
                piece = ""
        if piece:
            pieces.append(piece)
        for k, piece in enumerate(pieces):
            part = Token("string", f'"{piece}"', t.before if k == 0 else " ", t.line)
            part.depth, part.previous = t.depth, t.previous
            out.append(part)
    return out


def join_strings(rows):
    """Literals that split_strings cut and that stand on one line again are joined."""
    for _, tokens in rows:
        k = 1
        while k < len(tokens):
            a, b = tokens[k - 1], tokens[k]
            if a.kind == b.kind == "string" and getattr(a, "previous", 0) is getattr(b, "previous", 1):
                tokens[k - 1].text = tokens[k - 1].text[:-1] + tokens[k].text[1:]
                del tokens[k]
            else:
                k += 1
    return rows


def statements(tokens):
    """Cut after each ; and after each block that ends a statement, outside of brackets."""
    depths(tokens)
    parts, part = [], []
    for k, t in enumerate(tokens):
        part.append(t)
        follower = tokens[k + 1].text if k + 1 < len(tokens) else None
        is_end = t.text == "}" and t.is_block and follower not in (";", ",", "else", "while", ")", None)
        is_end = t.text == ";" or (is_end and k > 0 and not is_word(tokens, k + 1))
        if is_end and t.depth == 0 and t.kind == "sign" and follower is not None and tokens[k + 1].kind != "comment":
            parts.append(part)
            part = []
    return parts + ([part] if part else [])


def is_word(tokens, k):
    """Whether a struct's } goes on with a declarator."""
    return k < len(tokens) and tokens[0].text in ("struct", "union", "enum", "typedef")


def block_at(tokens):
    """(index of the first block's { with more after it, index of its }); a } that is not there: the end."""
    for k, t in enumerate(tokens):
        if t.text == "{" and t.kind == "sign" and t.is_block and k + 1 < len(tokens):
            for m in range(k + 1, len(tokens)):
                if getattr(tokens[m], "opener", None) is t:
                    return None if m == k + 1 and m + 1 == len(tokens) else (k, m)
            return k, len(tokens)
    return None


def lay(tokens, first, cont, base, width, deeper=0):
    """Lines (indent, tokens) of at most `width` columns. first: indent of the first, cont: of continuations, base: of the statement."""
    depths(tokens)
    if first + len(render(tokens)) <= width:
        return [(first, tokens)]
    parts = statements(tokens)
    if len(parts) > 1:
        out = []
        for k, part in enumerate(parts):
            out += lay(part, first if k == 0 else base, cont if k == 0 else base + 4, base, width)
        return out
    if tokens[0].text in ("case", "default"):
        k = next((k for k, t in enumerate(tokens) if t.text == ":" and t.depth == 0 and "?" not in [x.text for x in tokens[:k]]), None)
        if k is not None and 0 < k < len(tokens) - 1 and tokens[k + 1].text != "{":
            return lay(tokens[:k + 1], first, cont, base, width) + lay(tokens[k + 1:], base + 4, base + 8, base + 4, width)
    end = None
    if tokens[0].text == "template":
        depths(tokens)
        end = next((k for k, t in enumerate(tokens) if k > 1 and t.is_angle and t.text[0] == ">" and t.depth == 0), None)
        if end is not None and end + 1 < len(tokens) and base + len(render(tokens[end + 1:])) <= width:
            return lay(tokens[:end + 1], first, cont, base, width) + lay(tokens[end + 1:], base, base + 4, base, width)
    if tokens[0].text == "enum" and tokens[-1].text == ";" and tokens[-2].text == "}" and len(tokens) > 5:
        k = next(k for k, t in enumerate(tokens) if t.text == "{")
        return [(first, tokens[:k + 1])] + lay(tokens[k + 1:-2], base + 4, base + 4, base + 4, width) + [(base, tokens[-2:])]
    block = block_at(tokens)
    if block is not None:
        k, m = block
        if first > base and tokens[k].depth > 0:
            base = first
        out = lay(tokens[:k + 1], first, cont, base, width)
        body = tokens[k + 1:m]
        for part in statements(body) if body else []:
            out += lay(part, base + 4, base + 8, base + 4, width)
        return out + (lay(tokens[m:], base, base + 4, base, width) if m < len(tokens) else [])
    if end is not None and end + 1 < len(tokens):
        return lay(tokens[:end + 1], first, cont, base, width) + lay(tokens[end + 1:], base, base + 4, base, width)
    rows = lay_ternary(tokens, first, cont, width)
    if rows is not None:
        return rows
    is_return = tokens[0].text == "return" and first == base
    rows = best_breaks(tokens, first, cont, is_return, width, deeper)
    if rows is None:
        rows = best_breaks(split_strings(tokens), first, cont, is_return, width, deeper)
        rows = rows if rows is None else join_strings(rows)
    return rows if rows is not None else [(first, tokens)]


def lay_ternary(tokens, first, cont, width):
    """A statement that is a conditional expression, with each : on a separate line; None: it is none, or has no such layout."""
    depths(tokens)
    outer = [k for k, t in enumerate(tokens) if t.depth == 0 and t.kind == "sign" and t.text in ("?", ":", ",")]
    signs = "".join(tokens[k].text for k in outer)
    if not re.match(r"(?:\?:)+$", signs) or tokens[0].text in ("?", ":", "case") or first == cont:
        return None
    colons, mark = outer[1::2], outer[0]

    def fits(rows):
        return all(indent + len(render(row)) <= width for indent, row in rows)

    def parts(cuts):
        return [tokens[a:b] for a, b in zip([0] + cuts, cuts + [len(tokens)])]

    column = first + len(render(tokens[:mark])) + 1
    rows = [(first if k == 0 else column, part) for k, part in enumerate(parts(colons))]
    if column <= 80 and fits(rows):
        return rows
    rows = [(first if k == 0 else cont, part) for k, part in enumerate(parts([mark] + colons))]
    if fits(rows):
        return rows
    out = []
    for indent, part in rows:
        part = [(indent, part)] if indent + len(render(part)) <= width else best_breaks(part, indent, indent + 4, part[0].text == "return", width)
        if part is None:
            return None
        out += part
    return out


def ends_statement(source, i):
    """Whether the code before line i ends there."""
    k = i - 1
    while k >= 0 and not source.code[k]:
        if source.kind[k] not in ("comment", "block") and source.lines[k].strip() == "":
            return True
        k -= 1
    if k < 0 or (source.kind[k] == "directive") != (source.kind[i] == "directive"):
        return True
    last = source.code[k][-1]
    if last.kind == "comment" and len(source.code[k]) > 1:
        last = source.code[k][-2]
    if last.text in (";", "}", "{") or last.kind == "comment":
        return True
    if source.kind[i] == "directive" and source.code[k][0].text == "#":
        return True
    if last.text == ":" and source.code[k][0].text in ("case", "default", "public", "private"):
        return True
    if last.text == ">" and source.code[k][0].text == "template":
        return True
    if last.text == "," and source.stack[i] and source.stack[i][-1].text == "{":
        return spaces(source.lines[i]) <= spaces(source.lines[k])
    if last.text != ")" or source.code[i][0].text in ("?", ":", "&&", "||", ".", "->", "<<"):
        return False
    return spaces(source.lines[i]) <= spaces(source.lines[k]) and len(source.stack[i]) <= len(source.stack[k])


def statement_start(source, i):
    k = i
    while k > 0 and (not source.code[k] or not ends_statement(source, k)):
        k -= 1
    return k


def can_take(source, i, level):
    """Whether line i, which continues the statement, may be joined with the rest of the line above."""
    if i >= len(source.lines) or not source.code[i] or source.tail[i] is not None or source.kind[i] in ("raw", "comment", "block"):
        return False
    t = source.code[i][0]
    if t.text in ("?", ":", "{", "}", "#", "<<", "else") or t.kind in ("string", "comment") or ends_statement(source, i):
        return False
    return len(source.stack[i]) == level and "  " not in render(source.code[i]) and block_at(source.code[i]) is None


def level_after(source, i, rows):
    """Open brackets where the last row begins."""
    d = list(source.stack[i])
    for _, tokens in rows[:-1]:
        for t in tokens:
            if t.kind == "sign" and (t.text in "([{" or (t.is_angle and t.text == "<")):
                d.append(t)
            elif t.kind == "sign" and (t.text in ")]}" or (t.is_angle and t.text[0] == ">")):
                d = d[:-(len(t.text) if t.is_angle else 1)] or []
    return len(d)


class Columns:
    def __init__(self, text):
        self.source = Source(text)
        self.lines, self.out, self.left = self.source.lines, [], []
        self.below = []  # comment lines that follow the line in work

    def run(self):
        i = 0
        while i < len(self.lines):
            if self.is_macro(i):
                i = self.macro(i)
            elif len(self.lines[i]) <= LIMIT:
                self.out.append(self.lines[i])
                i += 1
            else:
                i = self.long_line(i)
        return "\n".join(self.out)

    def is_macro(self, i):
        return self.source.kind[i] == "directive" and bool(self.source.code[i]) and self.source.code[i][0].text == "#" and \
            re.match(r"\s*#\s*define\b", self.lines[i]) is not None

    def leave(self, i):
        self.left.append((i + 1, self.lines[i]))
        self.out.append(self.lines[i])
        return i + 1

    def long_line(self, i):
        s = self.source
        if s.kind[i] in ("comment", "block"):
            end = i + 1
            while end < len(self.lines) and s.kind[end] == s.kind[i] and not s.code[end]:
                end += 1
            new = reflow_comment(self.lines, i, end, s.kind[i] == "block")
            if new is None:
                return self.leave(i)
            self.out += new[0]
            return i + new[1]
        if s.kind[i] == "directive" and s.code[i] and s.tail[i] is not None and not self.lines[i].endswith("\\"):
            used = self.move_comment(i)
            if len(self.line_of(i)) > LIMIT:
                self.left.append((i + 1, self.lines[i]))
            self.out.append(self.line_of(i))
            return i + used
        if s.kind[i] == "directive" and re.match(r"\s*#\s*(?:el)?if\b", self.lines[i]) and s.tail[i] is None:
            rows = best_breaks(list(s.code[i]), spaces(self.lines[i]), spaces(self.lines[i]) + 4, False, LIMIT - 2)
            if rows is not None:
                self.out += [" " * indent + render(row) + (" \\" if k + 1 < len(rows) else "") for k, (indent, row) in enumerate(rows)]
                return i + 1
        if s.kind[i] in ("raw", "directive") or not s.code[i]:
            return self.leave(i)
        used = 1
        if s.tail[i] is not None:
            used = self.move_comment(i)
            if len(self.line_of(i)) <= LIMIT:
                self.out += [self.line_of(i)] + self.below
                self.below = []
                return i + used
        first, last = self.ternary(i) if s.tail[i] is None else (i, i)
        if last > first:
            tokens = [copy.copy(t) for t in s.code[first]]
            for k in range(first + 1, last + 1):
                more = [copy.copy(t) for t in s.code[k]]
                self.spaced(more[0], tokens[-1])
                if more[0].kind == "string" and tokens[-1].kind == "string":
                    tokens[-1].text = tokens[-1].text[:-1] + more.pop(0).text[1:]
                tokens += more
            for t in tokens[1:]:
                t.before = " " if len(t.before) > 1 else t.before
            base = spaces(self.lines[first])
            rows = lay_ternary(tokens, base, base + 4, LIMIT)
            if rows is None:
                rows = lay_ternary(split_strings(tokens), base, base + 4, LIMIT)
                rows = rows if rows is None else join_strings(rows)
            if rows is not None and all(indent + len(render(row)) <= LIMIT for indent, row in rows):
                del self.out[len(self.out) - (i - first):]
                self.out += [" " * indent + render(row) for indent, row in rows]
                return last + 1
        if s.tail[i] is not None and used > 1:
            rows, n = self.code_line(i, LIMIT, False)
        else:
            rows, n = self.code_line(i, LIMIT, True)
        if any(indent + len(render(tokens)) > LIMIT for indent, tokens in rows):
            self.left.append((i + 1, self.lines[i]))
        self.out += [" " * indent + render(tokens) for indent, tokens in rows] + self.below
        self.below = []
        return i + used - 1 + n

    def ternary(self, i):
        """(first, last) line of the statement of line i if lines of it begin with ? or : and it may be laid out as a whole; else (i, i)."""
        s = self.source
        first, last = statement_start(s, i), i
        while last + 1 < len(self.lines) and s.code[last + 1] and not ends_statement(s, last + 1):
            last += 1
        lines = range(first, last + 1)
        if s.code[first][0].text == "asm" or self.out[len(self.out) - (i - first):] != self.lines[first:i]:
            return i, i
        if not any(s.code[k] and s.code[k][0].text in ("?", ":") for k in lines[1:]):
            return i, i
        for k in lines:
            if not s.code[k] or s.tail[k] is not None or s.kind[k] or any(t.kind == "comment" or (t.text == "{" and t.is_block) for t in s.code[k]):
                return i, i
        return first, last

    def line_of(self, i):
        return " " * spaces(self.lines[i]) + render(self.source.code[i])

    def move_comment(self, i):
        """The comment at the end of line i goes above it, with the lines that continue it: number of lines read."""
        s = self.source
        column, text = s.tail[i]
        words, used = text[2:].split(), 1
        while i + used < len(self.lines) and s.kind[i + used] == "comment" and spaces(self.lines[i + used]) == column:
            words += self.lines[i + used].strip()[2:].split()
            used += 1
        indent = spaces(self.lines[i])
        at = len(self.out)
        if s.code[i][0].text == "}" and s.code[i][-1].text == "{":  # above it another block ends: into its own block
            lead = " " * (indent + 4) + "// "
            self.below = wrap(words, lead, lead)
            return used
        first = statement_start(s, i)
        if first < i and s.code[i][-1].text in (";", "{") and all(s.code[k] and s.tail[k] is None for k in range(first, i)):
            # above the whole statement, if that was written as it was read
            n_back = i - first
            if self.out[-n_back:] == self.lines[first:i]:
                at, indent = len(self.out) - n_back, spaces(self.lines[first])
        lead = " " * indent + "// "
        self.out[at:at] = wrap(words, lead, lead)
        return used

    def code_line(self, i, width, may_join):
        """Rows of line i and of the lines after it that they were joined with: (rows, number of old lines)."""
        s = self.source
        first = statement_start(s, i)
        base, own = spaces(self.lines[first]), spaces(self.lines[i])
        if base > own:
            base = own
        tokens, n = list(s.code[i]), 1
        is_first = first == i
        cont = base + 4 if is_first and not (s.stack[i] and s.stack[i][-1].text == "{" and not s.stack[i][-1].is_block) else own
        follower = i + 1
        if is_first and cont > own and may_join and follower < len(self.lines) and s.code[follower] and s.kind[follower] == s.kind[i] and \
                not ends_statement(s, follower) and spaces(self.lines[follower]) > own and len(s.stack[follower]) - len(s.stack[i]) <= 1 and \
                spaces(self.lines[follower]) <= own + (24 if s.code[i][0].text == "asm" else 8):
            cont = spaces(self.lines[follower])
        deeper = 0
        if not is_first and follower < len(self.lines) and s.code[follower] and not ends_statement(s, follower) and \
                len(s.stack[follower]) > len(s.stack[i]) and own < spaces(self.lines[follower]) <= own + 8:
            deeper = spaces(self.lines[follower])
        while True:
            rows = lay(list(tokens), own, cont, base, width, deeper)
            if not may_join or len(rows) < 2 or not can_take(s, i + n, level_after(s, i, rows)) or block_at(tokens) is not None:
                return rows, n
            last = rows[-1][0] + len(render(rows[-1][1]))
            more = [copy.copy(t) for t in s.code[i + n]]
            fits = last + 1 + len(render(more)) <= width
            if not fits and (last > 60 or s.code[i + n][0].text in ("?", ":")):
                return rows, n
            more[0] = self.spaced(more[0], tokens[-1])
            tokens, n = tokens + more, n + 1

    @staticmethod
    def spaced(token, before):
        token.before = "" if before.text in ("(", "[") else " "
        return token

    # ---- macros

    def macro(self, i):
        s = self.source
        end = i
        while self.lines[end].endswith("\\") and end + 1 < len(self.lines):
            end += 1
        if all(len(line) <= LIMIT for line in self.lines[i:end + 1]):
            self.out += self.lines[i:end + 1]
            return end + 1
        if end == i and s.tail[i] is not None:
            return self.long_line(i)
        if self.lines[i].startswith("#define") and end > i + 20:
            table = self.table(i, end)
            if table is not None:
                self.out += table
                return end + 1
        is_aligned = end > i + 1 and any(line.endswith("  \\") for line in self.lines[i:end])
        bodies, k = [], i - 1
        while k < end:
            k += 1
            code = self.lines[k][:-1].rstrip() if k < end else self.lines[k]
            if len(code) <= LIMIT - 2 or s.tail[k] is not None or not s.code[k]:
                bodies.append((code, k))
                continue
            if k == i:
                bodies += [(row, k) for row in self.define(k)]
            else:
                rows, n = self.code_line(k, LIMIT - 2, True)
                bodies += [(" " * indent + render(tokens), k) for indent, tokens in rows]
                k += n - 1
        widest = max(len(code) for code, _ in bodies[:-1]) if len(bodies) > 1 else 0
        for n, (code, k) in enumerate(bodies):
            if len(code) > LIMIT - (2 if n + 1 < len(bodies) else 0):
                self.left.append((k + 1, self.lines[k]))
            if n + 1 == len(bodies):
                self.out.append(code)
            else:
                self.out.append((code.ljust(widest) if is_aligned and widest < LIMIT + 40 else code) + " \\")
        return end + 1

    def table(self, i, end):
        """A macro whose rows X(...) all have the same number of cells, with their columns as narrow as they can be; None: it is none.
        Comments that name all columns are its head; other comments stay between the rows."""
        rows, names, row = [], None, None
        for k in range(i + 1, end + 1):
            code = self.lines[k][:-1].rstrip() if k < end else self.lines[k]
            note = re.match(r"\s*/\*(.*)\*/$", code)
            if note:
                if row is not None:
                    return None
                rows.append(("note", note.group(1).strip()))
            else:
                row = (row or "") + " " + code.strip()
                if row.count("(") == row.count(")"):
                    cells = re.match(r" X\(([^()\"]*(?:\"[^\"]*\"[^()\"]*)*)\)$", row)
                    if not cells:
                        return None
                    rows.append(("row", [c.strip() for c in cells.group(1).split(",")]))
                    row = None
        counts = {len(cells) for kind, cells in rows if kind == "row"}
        if len(counts) != 1:
            return None
        n = counts.pop()
        while rows and rows[0][0] == "note" and len(names or []) < n:
            names = (names or []) + [w for w in rows.pop(0)[1].split() if w != "|"]
        if names is None or len(names) != n:
            return None
        cells_only = [max(len(cells[c]) for kind, cells in rows if kind == "row") + 1 for c in range(n)]
        widths = [max(w, len(name)) for w, name in zip(cells_only, names)]
        cuts = self.table_cuts(widths)
        if len(self.table_cuts(cells_only)) < len(cuts):  # names that are wider than their columns need more lines in the head alone
            widths, cuts = cells_only, self.table_cuts(cells_only)
        out = [self.lines[i][:-1].rstrip()]
        for k, (a, b) in enumerate(zip(cuts, cuts[1:])):
            at, heads = 6 if k == 0 else 12, []
            for c in range(a, b):  # on the first line on which it ends before the next begins
                place = max(at, 7)
                line = next((h for h in range(len(heads)) if len(heads[h]) < place), len(heads))
                heads += [""] * (line + 1 - len(heads))
                heads[line] = heads[line].ljust(place) + names[c]
                at += widths[c] + 1
            out += ["    /* " + head[7:] + " */" for head in heads]
        for kind, cells in rows:
            if kind == "note":
                out.append("    /* " + cells + " */")
                continue
            for k, (a, b) in enumerate(zip(cuts, cuts[1:])):
                text = " ".join((cells[c] + ("," if c + 1 < n else ")")).ljust(widths[c]) for c in range(a, b)).rstrip()
                out.append(("    X(" if k == 0 else "            ") + text)
        width = max(len(line) for line in out[:-1])
        return [line.ljust(width) + " \\" for line in out[:-1]] + [out[-1]]

    @staticmethod
    def table_cuts(widths):
        """First columns of the lines of a row, and the number of columns: as few lines as hold them, about equally long."""
        n, n_lines = len(widths), 1
        while True:
            cuts, most = [0], (sum(widths) + n) / n_lines
            for c in range(n):
                if c > cuts[-1] and sum(widths[cuts[-1]:c + 1]) + c - cuts[-1] > most and len(cuts) < n_lines:
                    cuts.append(c)
            cuts.append(n)
            if all(sum(widths[a:b]) + b - a + (5 if a == 0 else 11) <= LIMIT - 2 for a, b in zip(cuts, cuts[1:])):
                return cuts
            n_lines += 1

    def define(self, k):
        """The first line of a macro: its name and parameters, then the body."""
        tokens = list(self.source.code[k])
        n = 3
        if len(tokens) > 3 and tokens[3].text == "(" and tokens[3].before == "":
            while n < len(tokens) and tokens[n].text != ")":
                n += 1
            n += 1
        head, body = tokens[:n], tokens[n:]
        out = []
        if len(render(head)) > LIMIT - 2:
            rows = best_breaks(head, 0, 4, False, LIMIT - 2)
            out += [" " * indent + render(row) for indent, row in rows] if rows else [render(head)]
        else:
            out.append(render(head))
        indent = spaces(self.lines[k]) + 4
        if body:
            out += [" " * at + render(row) for at, row in lay(body, indent, indent + 4, indent, LIMIT - 2)]
        return out


def functions(text):
    """(line, name, number of lines) of each function."""
    source, out, opened = Source(text), [], None
    for i, tokens in enumerate(source.code):
        if source.kind[i] == "directive":
            continue
        for t in tokens:
            if t.text == "{" and t.is_block and opened is None and t.previous is not None and t.previous.text in (")", "const"):
                first = statement_start(source, t.line)
                if first > 0 and source.code[first - 1] and source.code[first - 1][0].text == "template":
                    first -= 1
                head = " ".join(source.lines[first:t.line + 1])
                name = re.findall(r"(\w+)\(", re.sub(r"__launch_bounds__\(.*?\)\)?", "", head))
                opened = (t, first, name[0] if name else "?")
            elif t.text == "}" and opened is not None and getattr(t, "opener", None) is opened[0]:
                out.append((opened[1] + 1, opened[2], t.line - opened[1] + 1))
                opened = None
    return out


def main(args):
    if args and args[0] == "--functions":
        for path in args[2:]:
            with open(path, encoding="utf-8") as f:
                for line, name, n in functions(f.read()):
                    if n > int(args[1]):
                        print(f"{path}:{line}: {name} has {n} lines")
        return 0
    is_check = args[:1] == ["--check"]
    n_bad = 0
    for path in args[1:] if is_check else args:
        with open(path, encoding="utf-8") as f:
            text = f.read()
        if is_check:
            wide = sum(len(line) > LIMIT for line in text.split("\n"))
            n_bad += wide
            print(f"{path}: {wide} lines are longer than {LIMIT} columns")
            continue
        columns = Columns(text)
        new = columns.run()
        old_stream, new_stream = stream(text), stream(new)
        if old_stream != new_stream:
            at = next((k for k, (a, b) in enumerate(zip(old_stream, new_stream)) if a != b), min(len(old_stream), len(new_stream)))
            print(f"{path}: the tokens would differ, nothing is written:")
            for tokens in (old_stream, new_stream):
                print("  " + " ".join(tokens[max(0, at - 20):at + 10]))
            n_bad += 1
            continue
        for line, what in columns.left:
            print(f"{path}:{line}: left: {what.strip()[:100]}")
        if new != text:
            with open(path, "w", encoding="utf-8") as f:
                f.write(new)
        print(f"{path}: {len(columns.left)} lines are still longer than {LIMIT} columns")
    return 1 if n_bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
