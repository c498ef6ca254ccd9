#!/usr/bin/env bash
# Makes a relocatable tarball of a built tree: bin/, lib/ with every library but glibc's and CUDA's,
# config/, models/, deploy/, the documents, and the licences of all of it. The unpacked tree runs on
# any x86-64 Linux with glibc 2.36 or newer; CUDA libraries, where there are any, are found at run
# time.
#   tools/bundle.sh BUILD OUT.tar.gz            the programs
#   tools/bundle.sh BUILD OUT.tar.gz --tests    also the GPU tests with their data, in tests/, and
#     the kernel benchmarks
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -lt 2 ] || [ $# -gt 3 ] || { [ $# -eq 3 ] && [ "$3" != --tests ]; }; then
  echo "usage: tools/bundle.sh BUILD OUT.tar.gz [--tests]" >&2
  exit 2
fi
build=$1 out=$2 tests=${3:-}
[ -x "$build/bin/aisp" ] || { echo "bundle.sh: no $build/bin/aisp; build first" >&2; exit 1; }

# Provided by the system: the loader and glibc's libraries, everything of a driver or a toolkit, and
# UCX, which loads modules for the network cards of its host.
not_ours='^(ld-linux.*|libc|libm|libpthread|libdl|librt|libresolv|libanl|libnsl|libutil|libcuda|libcudart|libcublas|libcublasLt|libcudnn.*|libnccl|libnvrtc.*|libnvidia.*|libuc[mpst]|libucs_signal)\.so'

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
version=$("$build/bin/aisp" --version | grep -oE '[0-9]+(\.[0-9]+)+' | head -n1)
name=aisp-${version:-0}
root=$stage/$name
mkdir -p "$root/bin" "$root/lib" "$root/config" "$root/models"
DESTDIR='' cmake --install "$build" --prefix "$root" --strip >/dev/null
git ls-files -z config | grep -zE '\.(ya?ml|json)$' | xargs -0 cp --parents -t "$root"
# The least effective draft head for the built-in model is left out for its size, and so are the
# evaluation texts.
git ls-files -z models ':!models/story-7m-medusa' ':!models/eval.jsonl' | xargs -0 cp --parents -t "$root"
# Models that share a tokenizer have only one copy of it.
for file in "$root"/models/*/tokenizer.json; do
  first=$root/models/story-7m/tokenizer.json
  if [ "$file" != "$first" ] && cmp -s "$file" "$first"; then ln -sf ../story-7m/tokenizer.json "$file"; fi
done
git ls-files -z LICENSE '*.md' ':!tests' docs deploy proto/inference.proto | xargs -0 cp --parents -t "$root"
if [ -n "$tests" ]; then
  mkdir -p "$root/tests" "$root/tools"
  cp "$build/lib/libaisp_cuda_bench.so" "$root/lib/"
  cp tools/gpu_check.sh tools/gpu_sanitize.sh tools/gpu_serve.sh "$root/tools/"
  find "$build/tests" -maxdepth 1 \( -name '*cuda*_test' -o -name kvcache_transport_test \) -type f -exec cp -t "$root/tests" {} +
  git ls-files -z tests/data | xargs -0 cp --parents -t "$root"
  find "$root/tests" -maxdepth 1 -type f -exec strip {} +
fi

# The libraries that the programs and their libraries need, as the loader itself resolves them.
programs=$(find "$root/bin" "$root/lib" "$root/tests" -maxdepth 1 -type f 2>/dev/null || true)
for program in $programs; do ldd "$program" 2>/dev/null || true; done |
  awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u |
  while read -r soname path; do
    if [[ $soname =~ $not_ours ]]; then continue; fi
    [ -e "$root/lib/$soname" ] && continue
    cp -L "$path" "$root/lib/$soname"
    echo "$soname $path" >> "$stage/libraries"
  done
strip --strip-unneeded "$root"/lib/*.so* 2>/dev/null || true

# The licence of each library: the copyright file of the package that it comes from. A library
# without one is not passed on.
mkdir -p "$root/licenses"
touch "$stage/libraries"
while read -r soname path; do
  # Where /lib is a link to /usr/lib, the package may know the file by either name.
  real=$(readlink -f "$path")
  package=$(dpkg-query -S "$real" "${real#/usr}" 2>/dev/null | head -n1 | cut -d: -f1 || true)
  if [ -z "$package" ] || [ ! -e "/usr/share/doc/$package/copyright" ]; then
    echo "bundle.sh: no package with a copyright file holds $path" >&2
    exit 1
  fi
  cp "/usr/share/doc/$package/copyright" "$root/licenses/$package"
  printf '%-40s %s\n' "lib/$soname" "licenses/$package" >> "$stage/licenses"
done < "$stage/libraries"
# Packages of one source have one text.
for file in $(find "$root/licenses" -type f | sort); do
  sum=$(sha256sum "$file" | cut -d' ' -f1)
  first=$(awk -v sum="$sum" '$1 == sum { print $2; exit }' "$stage/texts" 2>/dev/null || true)
  if [ -n "$first" ]; then ln -sf "$first" "$file"; else echo "$sum $(basename "$file")" >> "$stage/texts"; fi
done
if [ -e "$stage/licenses" ]; then sort "$stage/licenses" > "$root/licenses/README"; fi

# Every library must now come from the bundle or be provided by the system.
missing=$(for program in "$root"/bin/*; do
  env -i ldd "$program" | awk -v root="$root/" '$2 == "=>" && index($3, root) != 1 { print $1 }'
done | sort -u | grep -vE "$not_ours" | grep -v linux-vdso || true)
if [ -n "$missing" ]; then
  printf 'bundle.sh: not in the bundle:\n%s\n' "$missing" >&2
  exit 1
fi

mkdir -p "$(dirname "$out")"
tar --sort=name --owner=0 --group=0 --numeric-owner -C "$stage" -czf "$out" "$name"
echo "$out: $(du -h "$out" | cut -f1), $(find "$root/lib" -type f | wc -l) libraries"
