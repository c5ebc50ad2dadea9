#!/usr/bin/env python3
"""callers.py TREE: lists functions that are declared in a header of TREE/src or TREE/include and that nothing in
include, src, bench, examples or packaging calls or names. Tests do not count.

Only names are compared, not types: a listed function has no caller, but one that shares its name with a called
function is missed.
"""
import collections
import pathlib
import re
import sys

FOLDERS = ("include", "src", "bench", "examples", "packaging")
TOKEN = re.compile(
    r"""(?P<skipped>//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\2"|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+'(?![0-9]))
      | [A-Za-z_]\w* | \d(?:'?[\w.])* | :: | -> | \S""",
    re.VERBOSE | re.DOTALL,
)
NAME = re.compile(r"[A-Za-z_]\w*$")
DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(include|if|ifdef|ifndef|elif|else|endif|undef|pragma|error).*", re.MULTILINE)
# Words that may precede a parenthesis in a declaration and are not the declared name.
NOT_DECLARED = {"alignas", "decltype", "noexcept", "explicit", "requires", "return", "sizeof", "static_assert",
                "__attribute__", "__launch_bounds__"}


def tokens_of(text):
    """Names, numbers and marks; no comments, strings and directives but the bodies of macros."""
    text = re.sub(r"^[ \t]*#[ \t]*define[ \t]+\w+(\([^)]*\))?", "", DIRECTIVE.sub("", text), flags=re.MULTILINE)
    return [match.group() for match in TOKEN.finditer(text) if match.group("skipped") is None]


def declared_at(statement):
    """Where the name of the function that a statement of a namespace or class declares is; None where it does not."""
    angle = 0
    for i, token in enumerate(statement):
        previous = statement[i - 1] if i else ""
        if token in ("operator", "using", "typedef") or (token == "=" and angle == 0):
            return None
        if token == "<" and NAME.match(previous):
            angle += 1
        elif token == ">" and angle > 0:
            angle -= 1
        elif token == "(" and angle == 0 and previous not in NOT_DECLARED:
            before = statement[i - 2] if i > 1 else ""
            # Without a preceding type: a constructor, a destructor or a macro.
            typed = before not in ("", "~", "explicit", "constexpr", "inline")
            return i - 1 if typed and NAME.match(previous) else None
    return None


def declarations(tokens):
    """Yields the name of every function that is declared or defined, and whether it overrides another one."""
    scopes = []  # True: of names (namespace, class); False: a body or an initializer
    statement = []

    def take():
        at = declared_at(statement)
        found = [] if at is None else [(statement[at], "override" in statement)]
        statement.clear()
        return found

    for token in tokens:
        if scopes and not scopes[-1]:
            if token == "{":
                scopes.append(False)
            elif token == "}":
                scopes.pop()
        elif token == "{":
            words = set(statement)
            scopes.append(bool(words & {"namespace", "class", "struct", "union", "extern"}) and not words & {"(", "=", "enum"})
            yield from take()
        elif token == "}":
            yield from take()
            if scopes:
                scopes.pop()
        elif token == ";":
            yield from take()
        elif token == ":" and statement and statement[-1] in ("public", "protected", "private"):
            statement.clear()
        else:
            statement.append(token)


def mentions(tokens):
    """Yields every name that is called, qualified, pointed to or passed on; declared names are among them."""
    for previous, token, following in zip([""] + tokens, tokens, tokens[1:] + [""]):
        if not NAME.match(token):
            continue
        passed = previous in ("(", ",", "{", "=", "?", ":", "return") and following in (")", ",", "}", ";", ":")
        if following in ("(", "<") or previous in ("&", "::") or passed:
            yield token


def main():
    tree = pathlib.Path(sys.argv[1])
    in_headers = {}  # where a name is first declared, and whether each declaration there overrides
    declared, mentioned = collections.Counter(), collections.Counter()
    for folder in FOLDERS:
        for path in sorted((tree / folder).rglob("*")):
            if path.suffix not in (".hpp", ".cpp", ".cu", ".cuh"):
                continue
            tokens = tokens_of(path.read_text(encoding="utf-8"))
            mentioned.update(mentions(tokens))
            for name, overrides in declarations(tokens):
                declared[name] += 1
                if path.suffix in (".hpp", ".cuh") and folder in ("include", "src"):
                    in_headers.setdefault(name, (path.relative_to(tree), []))[1].append(overrides)
    for name, (place, overrides) in sorted(in_headers.items(), key=lambda item: (str(item[1][0]), item[0])):
        # What overrides everywhere is called by a library.
        if mentioned[name] <= declared[name] and not all(overrides):
            print(f"{place}: {name}")


main()
