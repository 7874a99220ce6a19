"""Finds functions and their parameters in C++ (by matching braces) and in Python (by its own parser)."""
import ast
import re
from typing import NamedTuple

from sources import line_of, without_literals


class Function(NamedTuple):
    name: str
    first_line: int
    lines: int  # 0: only declared
    parameters: int


_NOT_A_NAME = {"if", "for", "while", "switch", "catch", "return", "decltype", "alignas", "noexcept", "requires", "sizeof", "explicit",
               "__attribute__", "static_assert", "throw", "defined", "new", "delete", "alignof", "typeof", "TANDEM_CHECK"}
_CONTAINER = re.compile(r"(?:^|[\s>])(?:namespace|class|struct|union|enum|extern\s*\")|^\s*export\b")
_MACRO_STATEMENT = re.compile(r"^\s*(?:BENCHMARK|INSTANTIATE_|TYPED_TEST_SUITE|REGISTER_|MATCHER_|HWY_|ACTION_)")


def _matching(code, start, opening, closing):
    """Offset of the bracket that closes the one at `start`, or the end of the text."""
    depth = 0
    for offset in range(start, len(code)):
        if code[offset] == opening:
            depth += 1
        elif code[offset] == closing:
            depth -= 1
            if depth == 0:
                return offset
    return len(code) - 1


def _top_level_groups(head):
    """(text before, inside) of each top-level pair of parentheses."""
    groups, offset = [], 0
    while (offset := head.find("(", offset)) >= 0:
        end = _matching(head, offset, "(", ")")
        groups.append((head[:offset], head[offset + 1:end]))
        offset = end + 1
    return groups


def count_parameters(inside):
    text = re.sub(r"->|<<|>>=|<=|>=", "  ", inside).strip()
    if text in ("", "void"):
        return 0
    depth, count = 0, 1
    for char in text:
        if char in "(<[{":
            depth += 1
        elif char in ")>]}":
            depth -= 1
        elif char == "," and depth == 0:
            count += 1
    return count


def signature(head):
    """(name, parameter count) when `head` declares a function, else None."""
    plain = re.sub(r"\[\[.*?\]\]", lambda m: " " * len(m[0]), head, flags=re.DOTALL)
    for before, inside in _top_level_groups(plain):
        if "operator" not in before and before.count("<") > before.count(">"):
            continue  # a function type as a template argument
        if match := re.search(r"operator\s*(?:\(\)|[^\s\w(]+|\w+)?\s*$", before):
            if match[0].strip() == "operator" and not inside.strip():
                continue  # operator() ( ... ): the second group has the parameters
            return match[0].strip(), count_parameters(inside)
        match = re.search(r"(~?[A-Za-z_]\w*)\s*(?:<[^()]*>)?\s*$", before)
        if match is None or match[1] in _NOT_A_NAME:
            continue
        if re.search(r"=\s*[^=()]*$|\breturn\b|\busing\b", before.split("operator")[0]):
            return None  # an initializer or an alias
        if re.search(r"[\w>&*]\s+[&*]*(?:[\w:]|<[^()]*>)*$|^[\s\w:<>,~]+$", before) or "::" in before:
            return match[1], count_parameters(inside)
        return None
    return None


def _is_member_initializer(code, brace, head):
    """The brace of `: member_{1}` in a constructor's head, not its body."""
    if not re.search(r"\)\s*(?:noexcept\s*)?:(?!:)", head) or not re.search(r"[\w>]\s*$", head):
        return False
    after = code[_matching(code, brace, "{", "}") + 1:]
    return re.match(r"\s*(?:,|\{)", after) is not None


def cpp_functions(text):
    """Every function that is declared or defined outside another one's body."""
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m[0]), without_literals(text), flags=re.MULTILINE)
    found, offset, head_start = [], 0, 0
    while offset < len(code):
        char = code[offset]
        if char == "(":
            offset = _matching(code, offset, "(", ")")
        elif char == "{":
            head = code[head_start:offset]
            end = _matching(code, offset, "{", "}")
            if _is_member_initializer(code, offset, head):
                offset = end
            elif _opens_container(head):
                head_start = offset + 1
            else:
                _add(found, code, (head_start, offset, end), head)
                offset = end
                head_start = end + 1
        elif char in ";}":
            _add(found, code, (head_start, offset, None), code[head_start:offset])
            head_start = offset + 1
        elif char == ":" and re.search(r"\b(?:public|private|protected)\s*$", code[head_start:offset]):
            head_start = offset + 1
        offset += 1
    return found


def _opens_container(head):
    plain = re.sub(r"template\s*<.*?>\s*(?=class|struct|union)", "", head, flags=re.DOTALL)
    plain = re.sub(r"\b(?:alignas|__attribute__)\s*\([^)]*\)+", "", plain)
    return _CONTAINER.search(plain) is not None and "(" not in plain


def _add(found, code, span, head):
    start, stop, end = span
    if _MACRO_STATEMENT.match(head) or not (parsed := signature(head)):
        return
    first = line_of(code, start + len(head) - len(head.lstrip()))
    lines = 0 if end is None else line_of(code, end) - first + 1
    name, parameters = parsed
    if re.match(r"\s*(?:TEST|TEST_F|TEST_P|TYPED_TEST)\s*\(", head):
        name = re.sub(r"\s+", " ", head[head.index("(") + 1:head.rindex(")")]).replace(", ", ".")
    found.append(Function(name, first, lines, parameters))


def python_functions(text):
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names = [a.arg for a in node.args.posonlyargs + node.args.args + node.args.kwonlyargs]
            parameters = len(names) - (names[:1] in (["self"], ["cls"])) + bool(node.args.vararg) + bool(node.args.kwarg)
            found.append(Function(node.name, node.lineno, node.end_lineno - node.lineno + 1, parameters))
    return found
