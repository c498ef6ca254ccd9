#!/usr/bin/env python3
"""Sources that could not be compiled as one file are not put into one group. Usage: unity_groups_test.py   (run by CTest)"""

import os
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import unity_groups  # noqa: E402


class UnityGroups(unittest.TestCase):
    def groups(self, **files):
        """The groups of sources of one folder; a name that ends in _h is a header."""
        with tempfile.TemporaryDirectory() as root:
            for name, text in files.items():
                with open(os.path.join(root, name.replace("_h", ".h") if name.endswith("_h") else name + ".cc"), "w",
                          encoding="utf-8") as file:
                    file.write(text)
            headers = unity_groups.Headers(root)
            sources = [unity_groups.Source(root, name + ".cc", headers) for name in files if not name.endswith("_h")]
            return [[s.path[:-3] for s in group] for group in unity_groups.grouped(sources, headers, 10)]

    def apart(self, one, other, **headers):
        self.assertEqual(self.groups(a=one, b=other, **headers), [["a"], ["b"]], (one, other))

    def together(self, one, other, **headers):
        self.assertEqual(self.groups(a=one, b=other, **headers), [["a", "b"]], (one, other))

    def test_the_same_private_name_keeps_sources_apart(self):
        self.apart("namespace { constexpr int kMost = 1, kLeast = 2; }", "namespace { constexpr int kLeast = 3; }")
        self.apart("namespace { int Parse(int x) { return x; } }", "static int Parse() { return 1; }")
        self.apart("namespace { struct Store { int a; }; }", "namespace { class Store; }")
        self.apart("namespace { enum Kind { kOne, kTwo }; }", "namespace { const int kTwo = 2; }")
        self.apart("#define PART 1\n", "namespace { int PART = 2; }")

    def test_a_name_that_means_something_else_in_the_other_source_does_too(self):
        self.apart("namespace { int Size() { return 1; } }", "void F() { int Size = 2; (void)Size; }")
        self.apart("namespace { int Size() { return 1; } }", '#include "s.h"\n', s_h="int Size(int);")
        self.together('#include "s.h"\nnamespace { int Size() { return 1; } }', '#include "s.h"\n', s_h="int Size(int);")

    def test_what_is_looked_up_elsewhere_does_not(self):
        self.together("namespace { int size() { return 1; } }", "int F(V v) { return v.size() + v->size() + V::size(); }")
        self.together("namespace { int Size() { return 1; } }", '// Size\nconst char* kText = "Size";')
        self.together("T::T(int a) : a_(a), b_{a} { int inner = 1; }\nint F() { return 1; }", "T::U() : a_(1) { int inner = 2; }")
        self.together("TEST(One, Two) { int x = 1; }", "TEST(One, Three) { int x = 1; }")

    def test_equal_aliases_may_meet_and_others_not(self):
        self.together("using std::chrono::seconds;", "using std::chrono::seconds;")
        self.together("namespace asio = boost::asio;", "namespace asio = boost::asio;")
        self.apart("using Json = nlohmann::json;", "using Json = nlohmann::ordered_json;")

    def test_what_changes_the_text_behind_it_stays_alone(self):
        self.assertEqual(self.groups(a="#define NDEBUG 1\n#include <cassert>\n", b="int g;"), [["b"]])
        self.assertEqual(self.groups(a="using namespace std;", b="int g;"), [["b"]])

    def test_a_group_that_failed_is_found_in_ninjas_output(self):
        with tempfile.TemporaryDirectory() as root:
            unity = "text/CMakeFiles/t.dir/Unity/unity_0_cxx.cxx"
            os.makedirs(os.path.join(root, os.path.dirname(unity)))
            with open(os.path.join(root, unity), "w", encoding="utf-8") as file:
                file.write(f'#include "{os.path.realpath(root)}/text/b.cc"\n#include "{os.path.realpath(root)}/text/a.cc"\n')
            log = os.path.join(root, "log")
            with open(log, "w", encoding="utf-8") as file:
                file.write(f"[1/9] Building\nFAILED: {unity}.o \nc++ ...\nFAILED: text/CMakeFiles/t.dir/c.cc.o\n")
            self.assertEqual(unity_groups.failed_sources(log, root, root), ["text/a.cc", "text/b.cc"])


if __name__ == "__main__":
    unittest.main()
