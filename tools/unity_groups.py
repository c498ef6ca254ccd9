#!/usr/bin/env python3
"""Finds the sources that CI may compile as one file (CMake's unity builds), so that their private names do not clash.

Sources of one folder are put into groups. Two sources may share a group if no name that one of them
declares outside of functions and classes occurs in the other's text, or in a header that only the
other one includes: then everything means what it means alone. A source that defines macros before
its last #include, includes a header of the kernel, or has `using namespace` stays alone.

Prints a CMake script: set("AISP_GROUP_<path>" <number>) for each source that shares its group. The
compiler finds what this parser of C++ overlooks: --failed LOG reads ninja's output and prints the
sources of the groups that did not compile, one a line; --apart FILE, such a list, takes them out of
their groups and leaves the other groups as they are.

Usage: tools/unity_groups.py --size N [--apart FILE] [--report]
       tools/unity_groups.py --failed LOG --build FOLDER
"""

import argparse
import os
import re
import subprocess
import sys

TOKENS = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"([^\s()\\]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'"""
    r"""|[A-Za-z_]\w*|\d(?:'?[\w.])*|::|->|\S""", re.S)
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
TYPE_WORDS = {"struct", "class", "union", "enum", "concept"}
OPEN = {"(": ")", "{": "}", "[": "]"}
KEYWORDS = set("""alignas auto bool case char class co_await co_return co_yield const consteval constexpr constinit decltype default delete
    do double else enum explicit export extern false final float for friend if inline int long mutable namespace new noexcept nullptr
    operator override private protected public register requires return short signed sizeof static static_assert struct switch template
    this thread_local throw true try typedef typename union unsigned using virtual void volatile while""".split())
# Macros of tests and of this project; one that a source defines itself is among its names anyway.
MACRO = re.compile(r"[A-Z][A-Z0-9_]*[A-Z0-9]$")


def tokens_of(text):
    """The tokens of a source without comments, literals' text and preprocessor lines."""
    words = []
    for match in TOKENS.finditer(text):
        word = match.group()
        if word.startswith(("//", "/*")):
            continue
        words.append('""' if word[0] in "\"'" or word.startswith('R"') else word)
    return words


def is_name(word):
    return (word[0].isalpha() or word[0] == "_") and word not in KEYWORDS


def identifiers(words):
    return {word for word in words if is_name(word)}


def unqualified(words):
    """Identifiers that are looked up in their own scope: not those after `::`, `.` or `->`."""
    return {word for before, word in zip([""] + words, words) if is_name(word) and before not in ("::", ".", "->")}


def skip_block(words, at):
    """The index after the bracket that closes the one at `at`."""
    depth = 0
    while at < len(words):
        if words[at] in OPEN:
            depth += 1
        elif words[at] in OPEN.values():
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return at


def declared(words):
    """Names declared at namespace level, enumerators too: {name: how}, where a second declaration
    of that kind does no harm."""
    names = {}
    at = 0
    while at < len(words):
        word = words[at]
        if word in ("namespace", "using", "typedef"):
            end = at + 1
            while end < len(words) and words[end] != ";" and not (words[end] == "{" and word == "namespace"):
                end += 1
            text = " ".join(words[at:end])
            if "=" in words[at:end]:
                names[words[at + 1]] = text  # namespace short = long; using Short = Long;
            elif word != "namespace" and words[at + 1] != "namespace":
                names[words[end - 1]] = text  # using a::Name; typedef Long Name;
            at = end + 1
        elif word == "}":
            at += 1
        else:
            at = declaration(words, at, names)
    return names


def declaration(words, at, names):
    """Parses one declaration or definition at `at`: adds its names, returns the index after it."""
    enum = words[at] == "enum"
    parameters = False
    while at < len(words):
        word, before = words[at], words[at - 1] if at else ""
        after = words[at + 1] if at + 1 < len(words) else ""
        if word == ";":
            return at + 1
        if word == "}":
            return at
        if word == ":" and parameters and before in (")", "noexcept"):
            return initialisers(words, at + 1)
        if word == "{":
            end = skip_block(words, at)
            if enum:
                names.update((name, "") for name in identifiers(words[at:end]))
            at = end
            # A function ends here; a class or a variable ends at its semicolon.
            if at >= len(words) or words[at] not in (";", ",", "=", "{", "["):
                return at
            continue
        if word in ("(", "["):
            parameters = parameters or word == "("
            at = skip_block(words, at)
            continue
        if is_name(word) and before not in ("::", ".", "->") and not (MACRO.match(word) and after == "("):
            if before in TYPE_WORDS or before == "class" or after in ("(", "=", "{", ";", ",", "[", ":"):
                names[word] = ""
        at += 1
    return at


def initialisers(words, at):
    """The index after the body of a constructor whose list of initialisers begins at `at`."""
    while at < len(words):
        while at < len(words) and words[at] not in ("(", "{"):
            at += 1
        at = skip_block(words, at)
        if at < len(words) and words[at] == "...":
            at += 1
        if at >= len(words) or words[at] != ",":
            return skip_block(words, at) if at < len(words) and words[at] == "{" else at
    return at


class Source:
    """One file: its own identifiers, its declarations, and the headers of this project that it
    reaches."""

    def __init__(self, root, path, headers):
        with open(os.path.join(root, path), encoding="utf-8") as file:
            text = file.read()
        self.path = path
        self.size = len(text)
        self.headers = set()
        todo = INCLUDE.findall(text)
        while todo:
            header = todo.pop()
            if header in self.headers:
                continue
            self.headers.add(header)
            todo += headers.includes(header)
        directives = DIRECTIVE.findall(text)
        body = DIRECTIVE.sub("", text)
        words = tokens_of(body)
        macros = {match.group(1) for line in directives if (match := re.match(r"\s*#\s*define\s+(\w+)", line))}
        self.words = unqualified(words) | macros
        self.names = declared(words) | {macro: "" for macro in macros}
        includes = [i for i, line in enumerate(directives) if re.match(r"\s*#\s*include", line)]
        defines = [i for i, line in enumerate(directives) if re.match(r"\s*#\s*(define|pragma)", line)]
        opens = any(words[i] == "using" and words[i + 1] == "namespace" for i in range(len(words) - 1))
        # <linux/tcp.h> and <netinet/tcp.h> declare the same types.
        kernel = any(re.match(r"\s*#\s*include\s*<linux/", line) for line in directives)
        self.alone = opens or kernel or bool(defines and includes and defines[0] < includes[-1])


class Headers:
    """The project's headers, each read once."""

    def __init__(self, root):
        self.root = root
        self.known = {}

    def read(self, header):
        if header not in self.known:
            try:
                with open(os.path.join(self.root, header), encoding="utf-8") as file:
                    text = file.read()
            except OSError:
                text = ""  # generated: messages of protobuf
            self.known[header] = (INCLUDE.findall(text), unqualified(tokens_of(DIRECTIVE.sub("", text))))
        return self.known[header]

    def includes(self, header):
        return self.read(header)[0]

    def words(self, header):
        return self.read(header)[1]


def meet(one, other, headers):
    """Whether a name of `one` occurs in `other`, or in a header that only `other` includes."""
    for name in one.names.keys() & other.words:
        if not (one.names[name] and one.names[name] == other.names.get(name)):
            return True
    return any(one.names.keys() & headers.words(header) for header in other.headers - one.headers)


def grouped(sources, headers, size, most_bytes=110_000):
    groups = []
    for source in sorted(sources, key=lambda s: s.path):
        if source.alone:
            continue
        for group in groups:
            if len(group) >= size or sum(s.size for s in group) + source.size > most_bytes:
                continue
            if not any(meet(source, s, headers) or meet(s, source, headers) for s in group):
                group.append(source)
                break
        else:
            groups.append([source])
    return groups


def failed_sources(log, build, root):
    """The sources of each unity file that ninja reports as FAILED."""
    with open(log, encoding="utf-8", errors="replace") as file:
        failed = re.findall(r"^FAILED: (?:\[\S+\] )?(\S*Unity/unity_\w+\.cxx)\.o", file.read(), re.M)
    found = []
    for path in failed:
        with open(os.path.join(build, path), encoding="utf-8") as file:
            found += [os.path.relpath(os.path.join(root, source) if not os.path.isabs(source) else source, os.path.realpath(root))
                      for source in INCLUDE.findall(file.read())]
    return sorted(set(found))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--size", type=int, default=10, help="sources in a group, at most")
    parser.add_argument("--apart", help="a file with sources that stay alone")
    parser.add_argument("--failed", help="ninja's output: name the sources of its groups that failed")
    parser.add_argument("--build", help="the build folder of --failed")
    parser.add_argument("--root", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    parser.add_argument("--report", action="store_true", help="say for each folder how many files it comes to")
    args = parser.parse_args()
    if args.failed:
        print(*failed_sources(args.failed, args.build, args.root), sep="\n")
        return 0
    apart = set()
    if args.apart and os.path.exists(args.apart):
        with open(args.apart, encoding="utf-8") as file:
            apart = set(file.read().split())
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.cc"], cwd=args.root, check=True,
                            capture_output=True, text=True).stdout.split()
    folders = {}
    for path in listed:
        if not re.search(r"(/|_)main\.cc$", path) and os.path.exists(os.path.join(args.root, path)):
            folders.setdefault(os.path.dirname(path), []).append(path)
    headers = Headers(args.root)
    total = [0, 0]
    for folder, paths in sorted(folders.items()):
        sources = [Source(args.root, path, headers) for path in paths]
        groups = grouped(sources, headers, args.size)
        count = len(groups) + sum(s.alone for s in sources)
        total = [total[0] + len(paths), total[1] + count]
        if args.report:
            print(f"{folder}: {len(paths)} sources in {count} files")
            continue
        for number, group in enumerate(groups):
            if len(group) > 1:
                for source in group:
                    if source.path in apart:
                        continue
                    print(f'set("AISP_GROUP_{source.path}" {number})')
    if args.report:
        print(f"{total[0]} sources in {total[1]} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
