#!/usr/bin/env python3
"""Checks the sizes of sources, functions and comments.

- no source of more than 500 lines;
- no function of more than 60 lines, unless the comment in front of it begins with "Long:" and says why;
- no line with a comment of more than 100 columns;
- no comment of more than four lines, except at the head of a file (everything before its first line of code).

Of Python, shell and CMake files, comments alone are checked, for their columns.

tools/check_text_allowed.txt lists the allowed offences: where, of which kind, how many, and why.
Its numbers only shrink: a number that is too large is an offence as well. Prints one line per
offence and exits 1 if there is any.

Usage: tools/check_text.py [--root DIR]
"""

import argparse
import os
import re
import sys

SUFFIXES = (".h", ".cc", ".cu", ".cuh")
SCRIPTS = (".py", ".sh", ".cmake", "CMakeLists.txt", "Makefile", ".ci/run")
MOST_LINES = 500
MOST_FUNCTION_LINES = 60
MOST_COLUMNS = 100
MOST_COMMENT_LINES = 4
ALLOWED_FILE = "tools/check_text_allowed.txt"
KINDS = ("lines", "function", "columns", "comment")
REASON = re.compile(r"^\s*// Long: \S")

RAW_STRING = re.compile(r'R"([^()\\\s]{0,16})\(.*?\)\1"', re.DOTALL)
COMMENT_OR_STRING = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.DOTALL)
# Keywords that open a scope in which functions may be defined.
OUTER = re.compile(r"^(inline\s+)?namespace\b|^extern\s*$|\b(class|struct|union)\s+[\w:<>, ]*\s*(final\s*)?(:[^:].*)?$")
NO_FUNCTION = re.compile(r"^(if|for|while|switch|else|do|try|catch|return|case|default|enum)\b|=\s*$|=\s*\[")


def find_sources(root):
    """All sources of the tree, relative to `root`, without build folders and hidden ones."""
    for directory, names, files in os.walk(root):
        names[:] = sorted(n for n in names if (n == ".ci" or not n.startswith((".", "build"))) and n != "venv")
        for name in sorted(files):
            path = os.path.relpath(os.path.join(directory, name), root).replace(os.sep, "/")
            if path.endswith(SUFFIXES + SCRIPTS):
                yield path


def blank(match):
    return re.sub(r"[^\n]", " ", match.group())


def code_of(text):
    """The text without comments, strings and preprocessor lines; line numbers are kept."""
    text = COMMENT_OR_STRING.sub(blank, RAW_STRING.sub(blank, text))
    lines = text.split("\n")
    continued = False
    for i, line in enumerate(lines):
        if continued or line.lstrip().startswith("#"):
            continued = line.endswith("\\")
            lines[i] = ""
    return lines


def functions(lines):
    """(first line, last line), counted from 1, of every function that is defined in a namespace or a class."""
    found = []
    scopes = []        # of each open brace: (kind, first line), kind "outer", "function" or "inner"
    statement, begun = "", 0
    for number, line in enumerate(lines, 1):
        for char in line:
            if char == "{":
                text = " ".join(statement.split())
                outside = not scopes or scopes[-1][0] == "outer"
                text = re.sub(r"^template\s*<[^{}]*?>\s*(?=(class|struct|union)\b)", "", text)
                if outside and OUTER.search(text) and "(" not in text.split(":")[0]:
                    kind = "outer"
                elif outside and "(" in text and statement[-1].isspace() and not NO_FUNCTION.search(text):
                    kind = "function"
                else:
                    kind = "inner"
                scopes.append((kind, begun if statement.strip() else number, statement))
                statement = ""
            elif char == "}":
                kind, first, before = scopes.pop() if scopes else ("inner", number, "")
                if kind == "function":
                    found.append((first, number))
                # Braces inside a statement, as in an initializer: the statement goes on.
                goes_on = kind == "inner" and (not scopes or scopes[-1][0] == "outer")
                statement, begun = (before + "{}", first) if goes_on else ("", number)
            elif char == ";" or (char == ":" and statement.strip() in ("public", "private", "protected")):
                statement = ""
            else:
                if not statement.strip() and not char.isspace():
                    begun = number
                statement += char
        statement += "\n"
    return found


def columns_offence(path, number, line):
    return "columns", f"{path}:{number}: a comment of {len(line)} columns, at most {MOST_COLUMNS}"


def check(path, text):
    """The offences of one source, as (kind, "path:line: what")."""
    raw = text.split("\n")
    if raw and raw[-1] == "":
        raw.pop()
    if path.endswith(SCRIPTS):
        return [columns_offence(path, number, line) for number, line in enumerate(raw, 1)
                if line.lstrip().startswith("#") and len(line) > MOST_COLUMNS]
    offences = []
    if len(raw) > MOST_LINES:
        offences.append(("lines", f"{path}:1: {len(raw)} lines, at most {MOST_LINES}; split it"))
    seen_code, run = False, 0
    for number, line in enumerate(raw + [""], 1):
        stripped = line.strip()
        if "//" in line and len(line) > MOST_COLUMNS:
            offences.append(columns_offence(path, number, line))
        if stripped.startswith("//"):
            run += 1
            continue
        if run > MOST_COMMENT_LINES and seen_code:
            offences.append(("comment", f"{path}:{number - run}: a comment of {run} lines, "
                                        f"at most {MOST_COMMENT_LINES} after the head of a file"))
        run = 0
        seen_code = seen_code or bool(stripped)
    for first, last in functions(code_of(text)):
        if last - first + 1 <= MOST_FUNCTION_LINES:
            continue
        above = first - 2
        while above >= 0 and raw[above].strip().startswith("//"):
            above -= 1
        if not any(REASON.match(line) for line in raw[above + 1:first - 1]):
            offences.append(("function", f"{path}:{first}: a function of {last - first + 1} lines, at most "
                                         f"{MOST_FUNCTION_LINES}; split it, or say why in a comment that begins with Long:"))
    return offences


def read_allowed(root):
    """{(kind, path): allowed number} from lines "kind path count reason"; and the errors in the
    file."""
    allowed, offences = {}, []
    path = os.path.join(root, ALLOWED_FILE)
    if not os.path.exists(path):
        return allowed, offences
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            words = line.split(maxsplit=3)
            if not words or line.startswith("#"):
                continue
            if len(words) < 4 or words[0] not in KINDS or not words[2].isdigit():
                offences.append(f"{ALLOWED_FILE}:{number}: wants a kind ({', '.join(KINDS)}), a path, a number and a reason")
            else:
                allowed[(words[0], words[1])] = int(words[2])
    return allowed, offences


def check_tree(root):
    """The offences that are not allowed, and the number of sources."""
    allowed, offences = read_allowed(root)
    left = dict(allowed)
    sources = 0
    for path in find_sources(root):
        sources += 1
        with open(os.path.join(root, path), encoding="utf-8") as file:
            found = check(path, file.read())
        for kind in KINDS:
            of_kind = [text for each, text in found if each == kind]
            may = left.pop((kind, path), 0)
            if len(of_kind) > may:
                offences += of_kind
            elif len(of_kind) < may:
                offences.append(f"{ALLOWED_FILE}: allows {may} of '{kind}' in {path}, which has {len(of_kind)}; lower it")
    offences += [f"{ALLOWED_FILE}: allows '{kind}' in {path}, which is not there" for kind, path in left]
    return offences, sources


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    root = parser.parse_args().root
    offences, sources = check_tree(root)
    for offence in offences:
        print(offence)
    print(f"text: {len(offences)} offences" if offences else f"text: {sources} sources are within the limits")
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
