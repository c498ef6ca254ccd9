"""Each rule of tools/check_text.py against a small tree that breaks it, and against one that does not."""

import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(__file__), "..", "..", "tools", "check_text.py")
ALLOWED = "tools/check_text_allowed.txt"


def check(files):
    """Exit code and output lines of the script on a tree of {path: text}."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            full = os.path.join(root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as file:
                file.write(text)
        done = subprocess.run([sys.executable, SCRIPT, "--root", root], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.splitlines()


def body(lines, indent="  "):
    return "".join(f"{indent}Call({i});\n" for i in range(lines))


class CheckText(unittest.TestCase):
    def assert_offence(self, files, *expected):
        code, lines = check(files)
        self.assertEqual(code, 1, lines)
        for text in expected:
            self.assertTrue(any(text in line for line in lines), f"{text!r} not in {lines}")

    def assert_clean(self, files):
        code, lines = check(files)
        self.assertEqual(code, 0, lines)

    def test_a_long_source_is_named(self):
        self.assert_clean({"a/a.cc": "int a;\n" * 500})
        self.assert_offence({"a/a.cc": "int a;\n" * 501}, "a/a.cc:1: 501 lines")

    def test_comments_of_scripts_have_at_most_a_hundred_columns(self):
        paths = ("a/a.py", "a/CMakeLists.txt", "a/a.cmake", "tools/a.sh", ".ci/run")
        self.assert_clean({path: "  # " + "a" * 96 + "\n" + ("code " * 40 + "\n") * 600 for path in paths})
        self.assert_offence({path: "\n  # " + "a" * 97 + "\n" for path in paths},
                            *(f"{path}:2: a comment of 101 columns" for path in paths))

    def test_long_functions_are_found_wherever_they_are_defined(self):
        for head in ("int F(int a) {", "template <typename T>\nT A<T>::F() const {", "A::A(int a)\n    : a_(a), b_{a} {",
                     "TEST(A, B) {", 'std::array<int, 2> F(std::string s = "{") {'):
            with self.subTest(head):
                inside = 60 - (head.count("\n") + 1) - 1
                self.assert_clean({"a/a.cc": f"{head}\n{body(inside)}}}\n"})
                self.assert_offence({"a/a.cc": f"\n{head}\n{body(inside + 1)}}}\n"}, "a/a.cc:2: a function of 61 lines")

    def test_a_long_method_in_a_class_in_a_namespace_is_found(self):
        text = "namespace aisp {\nclass A final : public B {\n public:\n  int F() {\n" + body(60) + "  }\n};\n}  // namespace aisp\n"
        self.assert_offence({"a/a.h": text}, "a/a.h:4: a function of 62 lines")

    def test_a_stated_reason_allows_one(self):
        self.assert_clean({"a/a.cc": "// Long: one case for each operator.\nint F() {\n" + body(80) + "}\n"})
        self.assert_offence({"a/a.cc": "// Adds numbers.\nint F() {\n" + body(80) + "}\n"}, "a/a.cc:2: a function of 82 lines")

    def test_classes_tables_and_strings_are_no_functions(self):
        self.assert_clean({
            "a/a.h": "class A {\n" + "  int a_;\n" * 90 + "};\n",
            "a/b.cc": "constexpr int kTable[] = {\n" + "    F(1),\n" * 90 + "};\n",
            "a/c.cc": 'const char* kText = R"(\n' + "int F() {\n" * 90 + ')";\n',
            "a/d.cc": "#define F(x) \\\n" + "  { Call(x); \\\n" * 90 + "  }\n",
        })

    def test_comments_have_four_lines_and_a_hundred_columns(self):
        self.assert_clean({"a/a.cc": "// head\n" * 9 + "\nint a;\n" + "// four\n" * 4 + "int b;\n"})
        self.assert_offence({"a/a.cc": "int a;\n" + "// five\n" * 5 + "int b;\n"}, "a/a.cc:2: a comment of 5 lines")
        self.assert_offence({"a/a.cc": "int a;  // " + "x" * 90 + "\n"}, "a/a.cc:1: a comment of 101 columns")

    def test_what_is_allowed_has_a_reason_and_only_shrinks(self):
        long_function = {"a/a.cc": "int F() {\n" + body(80) + "}\n"}
        self.assert_clean({**long_function, ALLOWED: "# head\nfunction a/a.cc 1 a table\n"})
        self.assert_offence({**long_function, ALLOWED: "function a/a.cc 1\n"}, f"{ALLOWED}:1: wants")
        self.assert_offence({**long_function, ALLOWED: "function a/a.cc 2 a table\n"}, "lower it")
        self.assert_offence({**long_function, ALLOWED: "function a/a.cc 1 x\nlines b/b.cc 1 y\n"}, "b/b.cc, which is not there")

    def test_builds_are_left_out(self):
        self.assert_clean({"build-asan/a.cc": "int a;\n" * 600, ".hidden/a.cc": "int a;\n" * 600})


if __name__ == "__main__":
    unittest.main()
