#!/usr/bin/env bash
# Runs the bundle of this build as its container image would be run, in a root with nothing but
# glibc; checks its documents' links.
# Usage: container_test.sh SOURCE BUILD          Exits 77 (CTest: skipped) where namespaces cannot
# be made.
set -euo pipefail
source=$1 build=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$source/tools/bundle.sh" "$build" "$folder/bundle.tar.gz"
mkdir "$folder/bundle"
tar -xzf "$folder/bundle.tar.gz" -C "$folder/bundle" --strip-components=1

for file in LICENSE licenses/README; do
  [ -s "$folder/bundle/$file" ] || { echo "the bundle lacks $file" >&2; exit 1; }
done
# Every library is listed, and every listed library has its licence.
for library in "$folder"/bundle/lib/*.so*; do
  name=lib/$(basename "$library")
  [[ $name == lib/libaisp_* ]] && continue
  licence=$(awk -v name="$name" '$1 == name { print $2 }' "$folder/bundle/licenses/README")
  [ -n "$licence" ] && [ -s "$folder/bundle/$licence" ] || { echo "no licence of $name in the bundle" >&2; exit 1; }
done
python3 - "$folder/bundle" <<'LINKS'
import os, re, sys
root, broken = sys.argv[1], []
for path, _, names in os.walk(root):
    for name in names:
        if not name.endswith(".md"):
            continue
        with open(os.path.join(path, name), encoding="utf-8") as file:
            for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", file.read()):
                if not re.match(r"[a-z]+:", link) and not os.path.exists(os.path.join(path, link)):
                    broken.append(f"{os.path.relpath(os.path.join(path, name), root)}: {link}")
sys.exit("links that lead nowhere in the bundle:\n" + "\n".join(broken) if broken else 0)
LINKS
"$source/tools/container_check.py" "$folder/bundle.tar.gz"
