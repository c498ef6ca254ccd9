#!/usr/bin/env python3
"""Writes unicode_tables.inc from the interpreter's own Unicode database. Run by hand when the Unicode version moves;
keep it equal to PCRE2's (both were 14.0 when the committed table was made)."""
import sys
import unicodedata

CATS = ["Cn", "Cc", "Cf", "Co", "Cs", "Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl", "No",
        "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs"]


def emit(out, name, ctype, items):
    out.write(f"constexpr {ctype} {name}[] = {{\n")
    line = "   "
    for item in items:
        if len(line) + len(item) > 98:
            out.write(line + "\n")
            line = "   "
        line += " " + item
    out.write(line + "\n};\n")


def main(path):
    points = [c for c in range(0x110000)]
    ranges, last = [], None
    for c in points:
        cat = CATS.index(unicodedata.category(chr(c)))
        if cat != last:
            ranges.append("0x%x," % (c << 8 | cat))
            last = cat
    ccc, last = [], 0
    for c in points:
        k = unicodedata.combining(chr(c))
        if k != last:
            ccc.append("0x%x," % (c << 8 | k))
            last = k
    decomp, comp, upper, lower = [], [], [], []
    for c in points:
        if 0xD800 <= c <= 0xDFFF:
            continue
        ch = chr(c)
        raw = unicodedata.decomposition(ch)
        if raw and not raw.startswith("<"):
            parts = [int(x, 16) for x in raw.split()] + [0]
            decomp.append("{0x%x,0x%x,0x%x}," % (c, parts[0], parts[1] if len(parts) > 2 else 0))
            if len(parts) > 2 and unicodedata.normalize("NFC", ch) == ch:
                comp.append((parts[0], parts[1], c))
        for table, mapped in ((upper, ch.upper()), (lower, ch.lower())):
            if mapped != ch:
                m = [ord(x) for x in mapped] + [0, 0]
                table.append("{0x%x,{0x%x,0x%x,0x%x}}," % (c, m[0], m[1], m[2]))
    comp.sort()
    with open(path, "w") as out:
        out.write("// Made by generate_unicode_tables.py from Unicode %s. Do not edit.\n" % unicodedata.unidata_version)
        out.write("// Ranges: first code point << 8 | value; a range ends where the next begins.\n")
        emit(out, "kCategoryRanges", "uint32_t", ranges)
        emit(out, "kCombiningRanges", "uint32_t", ccc)
        emit(out, "kDecompositions", "Decomposition", decomp)
        emit(out, "kCompositions", "Composition", ["{0x%x,0x%x,0x%x}," % t for t in comp])
        emit(out, "kUpper", "CaseMapping", upper)
        emit(out, "kLower", "CaseMapping", lower)


main(sys.argv[1] if len(sys.argv) > 1 else "unicode_tables.inc")
