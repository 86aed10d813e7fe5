#!/usr/bin/env bash
# Builds llama.cpp, as packed in the llama-cpp-python source distribution, to compare with.
#   build_llama_cpp.sh DIR        binaries end up in DIR/build/bin
# Needs: python3 with venv; clang with libomp, else gcc and g++. Environment: JOBS (1), VERSION (0.3.36), CC, CXX.
set -euo pipefail
dir=${1:?usage: build_llama_cpp.sh DIR}
version=${VERSION:-0.3.36}
jobs=${JOBS:-1}
if [ -z "${CC:-}" ] && command -v clang++ >/dev/null; then
    export CC=clang CXX=clang++
fi
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

# 1. cmake and ninja, apart from the system's
[ -x "$dir/venv/bin/python" ] || python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q cmake ninja
export PATH="$dir/venv/bin:$PATH"

# 2. the source; its own build tools would be taken as wheels
sdist="$dir/llama_cpp_python-$version.tar.gz"
[ -f "$sdist" ] || "$dir/venv/bin/pip" download -q --no-deps --no-binary llama-cpp-python -d "$dir" \
    "llama-cpp-python==$version"
src="$dir/src"
if [ ! -d "$src" ]; then
    mkdir "$src.part"
    tar -xzf "$sdist" -C "$src.part" --strip-components=1
    mv "$src.part" "$src"
fi
tree="$src/vendor/llama.cpp"

# 3. gcc 12 drops the stores to the tile configuration before _tile_loadconfig (its "m" operand covers 8 of 64 bytes),
#    which ends in SIGILL at the first tile instruction. A compiler barrier keeps them. Under clang it changes nothing.
amx="$tree/ggml/src/ggml-cpu/amx/mmq.cpp"
grep -q 'longrun-peer-barrier' "$amx" || sed -i \
    's|^\([[:space:]]*\)_tile_loadconfig(|\1__asm__ volatile("" ::: "memory"); /* longrun-peer-barrier */ _tile_loadconfig(|' \
    "$amx"
grep -n 'longrun-peer-barrier' "$amx"

# 4. older clangs name the macro of AMX otherwise than gcc and llama.cpp do, which then leaves its AMX kernels out silently
grep -q '__AMXINT8__' "$amx" || grep -rlF 'defined(__AMX_INT8__)' "$tree/ggml/src/ggml-cpu" |
    xargs sed -i 's/defined(__AMX_INT8__)/(defined(__AMX_INT8__) || defined(__AMXINT8__))/g'

# 5. configure and build
cmake -S "$tree" -B "$dir/build" -G Ninja \
    -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF \
    -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_APP=OFF \
    -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF
nice -n 10 cmake --build "$dir/build" -j "$jobs" --target llama-bench llama-batched-bench llama-completion
"$dir/build/bin/llama-bench" --version
