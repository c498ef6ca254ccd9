#!/usr/bin/env python3
"""Checks that every folder uses only folders below it (table LAYERS), in includes and in CMake DEPS.

Prints one line per offence and exits 1 if there is any. tests/ and tools/ may use everything and
are not checked.

Usage: tools/check_layers.py [--root DIR] [--graph]
"""

import argparse
import os
import re
import sys

# Folder -> the folders directly below it. It may also use everything below those.
LAYERS = {
    "common": [],
    "proto": ["common"],
    "tracing": ["proto"],
    "text": ["common"],
    "constrain": ["text"],
    "answer": ["text"],
    "kernels/device": ["common"],
    "kernels": ["kernels/device"],
    "kernels/cpu": ["kernels"],
    "kernels/cuda": ["kernels"],
    "kernels/collective": ["kernels"],
    "kvcache": ["kernels/device"],
    "kvcache/tiers": ["kvcache"],
    "kvcache/transport": ["kvcache"],
    "kvcache/ucx": ["kvcache/transport"],
    "model": ["kernels"],
    "speculation": ["common"],
    "engine": ["model", "kvcache/tiers", "speculation"],
    "worker": ["engine", "kvcache", "proto"],
    "prefill": ["worker", "kvcache/transport"],
    "decode": ["worker", "kvcache/transport"],
    "router": ["text", "proto"],
    "api": ["text", "proto"],
    "net": ["proto"],
    "config": ["common"],
    "hub": ["common"],
    "loadgen": ["net", "proto"],
    "planner": ["router"],
    "simulate": ["planner", "loadgen"],
    "frontend": ["router", "api", "answer", "constrain", "tracing", "config"],
    "bench": ["engine", "kvcache/transport", "kernels/cuda", "router"],
    "server": ["frontend", "planner", "prefill", "decode", "net", "hub", "kernels/cpu", "kernels/cuda", "kernels/collective"],
    "commands": ["server", "bench", "simulate"],
}
UNCHECKED = ("tests", "tools", "docs", "deploy", "cmake", "bench/programs", "bench/cuda")
SOURCE_SUFFIXES = (".h", ".cc", ".cu", ".cuh")
# config/ composes the options that each library defines: it may include these headers of any
# folder, and no others.
OPTIONS_HEADER = re.compile(r"(^|/|_)options\.h$")

# Third-party headers that only some files may include: (what it is, include pattern, pattern of the
# files).
CONFINED = [
    ("CUDA", re.compile(r"^(cuda|cublas|cudnn|curand|cusparse|cusolver|cufft|nvml|nvrtc|nvtx|cub/|thrust/|cutlass/"
                        r"|cute/|mma\.h|cooperative_groups|device_launch)"),
     re.compile(r"^kernels/(cuda/|[^/]+/cuda)")),
    ("NCCL", re.compile(r"^nccl"), re.compile(r"^kernels/(cuda/|[^/]+/(cuda|nccl))")),
    ("gRPC", re.compile(r"^grpc(pp)?/|\.grpc\.pb\.h$"), re.compile(r"^net/")),
    ("Boost Asio and Beast", re.compile(r"^boost/(asio|beast)"), re.compile(r"^net/")),
    ("libcurl", re.compile(r"^curl/"), re.compile(r"^hub/http\.cc$")),
    ("spdlog", re.compile(r"^spdlog/"), re.compile(r"^common/log\.cc$")),
    ("prometheus-cpp", re.compile(r"^prometheus/"), re.compile(r"^common/metrics\.cc$")),
    ("UCX", re.compile(r"^(ucp|ucs|uct)/"), re.compile(r"^kvcache/ucx/")),
    ("yaml-cpp", re.compile(r"^yaml-cpp/"), re.compile(r"^config/")),
]
# Headers that take seconds to compile: no header that other folders include may include them.
HEAVY = re.compile(r"^(boost/(asio|beast)|nlohmann/json\.hpp|spdlog/|grpc(pp)?/|yaml-cpp/|prometheus/)")

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
GETENV = re.compile(r"\b(secure_)?getenv\b")
CUDA_MACRO = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif)\b.*\b(AISP_\w*CUDA|__CUDACC__)")
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
CMAKE_CALL = re.compile(r"\b(aisp_library|aisp_proto_library)\s*\(([^)]*)\)")
CMAKE_LINK = re.compile(r"\btarget_link_libraries\s*\(([^)]*)\)")
# Declarations outside of functions and classes begin in column 0 (clang-format).
NAMESPACE = re.compile(r"(?:inline )?namespace ?([\w:]*) \{")
TYPE = re.compile(r"(?:struct|class|enum class|enum) (\w+)(?: final)?(?: : [^;{]*)? \{")
CMAKE_KEYWORDS = {"DEPS", "LINK", "LINK_PUBLIC", "DEFINITIONS", "PUBLIC", "PRIVATE", "INTERFACE"}


def closure(direct):
    """Folder -> every folder below it. Exits on a cycle, naming it."""
    below = {}

    def visit(folder, path):
        if folder in path:
            sys.exit("the layer table has a cycle: " + " -> ".join(path[path.index(folder):] + [folder]))
        if folder not in below:
            found = set()
            for dep in direct.get(folder, []):
                found |= {dep} | visit(dep, path + [folder])
            below[folder] = found
        return below[folder]

    for folder in direct:
        visit(folder, [])
    return below


def folder_of(path):
    """The folder of the layer table that holds `path`, by the longest match; None if there is none."""
    parts = os.path.dirname(path).split("/")
    for length in range(len(parts), 0, -1):
        folder = "/".join(parts[:length])
        if folder in LAYERS:
            return folder
    return None


def find_files(root):
    """All checked files of the tree, relative to `root`."""
    for directory, names, files in os.walk(root):
        relative = os.path.relpath(directory, root).replace(os.sep, "/")
        here = "" if relative == "." else relative + "/"
        names[:] = sorted(n for n in names if here + n not in UNCHECKED)
        if relative == ".":
            names[:] = [n for n in names if not n.startswith((".", "build"))]
        for name in sorted(files):
            if relative != "." and (name.endswith(SOURCE_SUFFIXES) or name == "CMakeLists.txt"):
                yield f"{relative}/{name}"


def blank_comments_and_strings(text):
    """The code without comments and strings; line numbers and the strings of include lines are
    kept."""

    def blank(match):
        if match.group().startswith('"'):
            start = text.rfind("\n", 0, match.start()) + 1
            if re.match(r"\s*#\s*include", text[start:match.start()]):
                return match.group()
        return re.sub(r"[^\n]", " ", match.group())

    return COMMENT_OR_STRING.sub(blank, text)


class Checker:
    def __init__(self, root):
        self.root = root
        self.below = closure(LAYERS)
        self.offences = []
        self.edges = {}      # folder -> {folder used: "file:line" of one use}
        self.linked = {}     # folder -> folders in its DEPS
        self.includes = {}   # file -> project files that it includes
        self.types = {}      # qualified name -> "file:line" of each definition
        self.heavy = {}      # header -> (line, heavy include)

    def offend(self, path, line, message):
        self.offences.append(f"{path}:{line}: {message}")

    def run(self):
        unknown = set()
        for path in find_files(self.root):
            with open(os.path.join(self.root, path), encoding="utf-8") as file:
                text = file.read()
            folder = folder_of(path)
            if folder is None:
                if path.split("/")[0] not in unknown:
                    unknown.add(path.split("/")[0])
                    self.offend(path, 1, "this folder is not in the layer table of tools/check_layers.py")
            elif path.endswith("CMakeLists.txt"):
                self.check_cmake(path, folder, text)
            else:
                self.check_source(path, folder, blank_comments_and_strings(text))
        self.check_links_cover_includes()
        self.check_heavy_headers_stay_inside()
        self.check_cycles()
        self.check_types_have_one_definition()
        return self.offences

    def check_source(self, path, folder, code):
        self.includes[path] = set()
        for number, line in enumerate(code.split("\n"), 1):
            match = INCLUDE.match(line)
            if match:
                self.check_include(path, folder, number, match.group(1) == '"', match.group(2))
            elif folder != "config" and GETENV.search(line):
                self.offend(path, number, "reads the environment; only config/ does, pass an option instead")
            elif not folder.startswith("kernels") and CUDA_MACRO.match(line):
                self.offend(path, number, "an #ifdef on the backend; only kernels/ knows backends")

        self.note_types(path, code)

    def note_types(self, path, code):
        """Records where each type of a named namespace is defined."""
        inside, depth = [], 0  # (namespace, depth at which it opened)
        for number, line in enumerate(code.split("\n"), 1):
            names = [name for name, _ in inside]
            if match := NAMESPACE.match(line):
                inside.append((match.group(1), depth))
            elif (match := TYPE.match(line)) and depth == len(inside) and "" not in names:
                self.types.setdefault("::".join(names + [match.group(1)]), []).append(f"{path}:{number}")
            depth += line.count("{") - line.count("}")
            while inside and depth <= inside[-1][1]:
                inside.pop()

    def check_types_have_one_definition(self):
        """Reports types of one name in one program: they share inline functions, whichever the
        linker saw first."""
        for name, places in sorted(self.types.items()):
            if len(places) > 1:
                self.offences.append(f"{places[1]}: {name} is another type than the one in {places[0]}")

    def check_include(self, path, folder, number, quoted, name):
        for what, pattern, files in CONFINED:
            if pattern.search(name) and not files.search(path):
                self.offend(path, number, f"includes <{name}>: {what} stays in {files.pattern}")
        if HEAVY.search(name) and path.endswith((".h", ".cuh")):
            self.heavy[path] = (number, name)
        if name.endswith(".pb.h") and "/" not in name:
            target = "proto"
        else:
            target = folder_of(name)
            if target is not None:
                self.includes[path].add(name)
            elif quoted:
                self.offend(path, number, f'includes "{name}": write the path from the root of the project')
        if target is None or target == folder:
            return
        if folder == "config" and OPTIONS_HEADER.search(name):
            return
        self.edges.setdefault(folder, {}).setdefault(target, f"{path}:{number}")
        if target not in self.below[folder]:
            self.offend(path, number, f"{folder} includes {name}, but {target} does not stand below {folder}")

    def check_cmake(self, path, folder, text):
        text = re.sub(r"#[^\n]*", "", text)
        for match in CMAKE_CALL.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            words = match.group(2).split()
            keyword = None
            self.linked.setdefault(folder, set())
            for word in words[1:]:
                if word in CMAKE_KEYWORDS:
                    keyword = word
                elif keyword == "DEPS":
                    self.check_link(path, line, folder, word)
                elif keyword in ("LINK", "LINK_PUBLIC"):
                    self.check_linked_target(path, line, folder, word)
        for match in CMAKE_LINK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            for word in match.group(1).split()[1:]:
                self.check_linked_target(path, line, folder, word)

    def check_linked_target(self, path, line, folder, target):
        if target == "aisp_proto_grpc" or target == "ext::grpc":
            if folder != "net":
                self.offend(path, line, f"{folder} links {target}; only net/ does gRPC")
            return
        by_target = {"aisp_" + name.replace("/", "_"): name for name in LAYERS}
        if target in by_target:
            self.check_link(path, line, folder, by_target[target])

    def check_link(self, path, line, folder, dep):
        if dep == folder or "$" in dep:
            return
        self.linked.setdefault(folder, set()).add(dep)
        if dep not in LAYERS:
            self.offend(path, line, f"{folder} has the unknown folder {dep} in its DEPS")
        elif dep not in self.below[folder]:
            self.offend(path, line, f"{folder} links {dep}, but {dep} does not stand below {folder}")

    def check_links_cover_includes(self):
        """A folder that includes another one must also link it, itself or through what it links."""
        def reach(folder, seen):
            for dep in self.linked.get(folder, ()):
                if dep not in seen:
                    seen.add(dep)
                    reach(dep, seen)
            return seen

        for folder, used in sorted(self.edges.items()):
            reached = reach(folder, set())
            if folder not in self.linked or any(dep not in self.linked for dep in reached):
                continue  # a folder without a CMakeLists.txt: its DEPS are unknown
            missing = set(used) - reached
            for target in sorted(missing & self.below[folder]):
                self.offences.append(f"{used[target]}: {folder} includes {target}, which is not among its CMake DEPS")

    def check_heavy_headers_stay_inside(self):
        includers = {}
        for path, names in self.includes.items():
            for name in names:
                includers.setdefault(name, set()).add(path)
        for header, (line, name) in sorted(self.heavy.items()):
            seen, queue = set(), [header]
            while queue:
                for path in includers.get(queue.pop(), ()):
                    if path not in seen:
                        seen.add(path)
                        queue.append(path)
            outside = sorted(p for p in seen if folder_of(p) != folder_of(header))
            if outside:
                self.offend(header, line, f"exposes the heavy header <{name}> to {outside[0]}; include it in a .cc file")

    def check_cycles(self):
        state = {}

        def visit(folder, path):
            state[folder] = "open"
            for target in sorted(set(self.edges.get(folder, {})) | self.linked.get(folder, set())):
                if state.get(target) == "open":
                    cycle = path[path.index(target):] + [target]
                    self.offences.append("folder cycle: " + " -> ".join(cycle))
                elif target not in state:
                    visit(target, path + [target])
            state[folder] = "done"

        for folder in sorted(set(self.edges) | set(self.linked)):
            if folder not in state:
                visit(folder, [folder])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser.add_argument("--graph", action="store_true", help="print the edges that exist")
    arguments = parser.parse_args()
    checker = Checker(arguments.root)
    offences = checker.run()
    if arguments.graph:
        for folder in LAYERS:
            used = sorted(checker.edges.get(folder, {}))
            if used:
                print(f"{folder} -> {', '.join(used)}")
    for offence in offences:
        print(offence)
    if offences:
        print(f"layers: {len(offences)} offences")
        return 1
    print("layers: every folder uses only what stands below it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
