#!/usr/bin/env bash
# Installs what building aisp needs, on Debian 12 and Ubuntu 24.04. Does nothing, and quickly, when
# all of it is there.
#   tools/install_deps.sh          to build, test and run
#   tools/install_deps.sh --dev    also what formats and lints, and a browser for the test of the
#     page
#   tools/install_deps.sh --fuzz   also the compiler of the fuzzers
#   tools/install_deps.sh --container    also what makes a root file system
#   tools/install_deps.sh --monitoring   also Prometheus, for the tests of deploy/ (its package
#     starts a service where there is systemd)
set -euo pipefail

packages=(
  g++ lld cmake ninja-build ccache pkg-config make git python3 python3-jsonschema
  protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libgrpc++-dev libssl-dev libcurl4-openssl-dev
  libspdlog-dev libfmt-dev prometheus-cpp-dev libyaml-cpp-dev nlohmann-json3-dev libsimdjson-dev
  libboost-dev libpcre2-dev libexpected-dev libxxhash-dev libucx-dev libidn2-dev
  libgtest-dev libgmock-dev
)
for argument in "$@"; do
  case "$argument" in
    # The same version on both systems, so that both report the same.
    --dev)
      packages+=(clang-format-14 clang-tidy-19 libomp-19-dev)
      # For the test of the page. Ubuntu's chromium is a snap, which CI machines lack.
      if grep -q '^ID=debian' /etc/os-release 2>/dev/null; then
        packages+=(chromium chromium-driver fonts-dejavu-core)
      fi
      ;;
    --fuzz) packages+=(clang-19 libclang-rt-19-dev) ;;
    --container) packages+=(mmdebstrap iproute2) ;;
    --monitoring) packages+=(prometheus) ;;
    *) echo "install_deps.sh: unknown argument '$argument'; --dev, --fuzz, --container and --monitoring are known" >&2; exit 2 ;;
  esac
done

if ! command -v dpkg-query >/dev/null; then
  echo "install_deps.sh: no dpkg here; install by hand what these Debian packages hold: ${packages[*]}" >&2
  exit 1
fi

# dpkg-query exits 1 when it does not know one of the packages, but still prints those that it
# knows.
known=$(dpkg-query -W -f '${binary:Package} ${db:Status-Abbrev}\n' "${packages[@]}" 2>/dev/null || true)
installed=$(sed -n 's/^\([^: ]*\).* ii *$/\1/p' <<<"$known")
missing=()
for package in "${packages[@]}"; do
  grep -qxF -- "$package" <<<"$installed" || missing+=("$package")
done
[ "${#missing[@]}" -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install_deps.sh: neither root nor sudo; as root run: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "installing: ${missing[*]}" >&2
"${as_root[@]}" apt-get update -q </dev/null
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" </dev/null
