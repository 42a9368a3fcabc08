#!/usr/bin/env python3
"""Makes the PTX of the GPU kernels (src/gpu/cuda/*.ptx, docs/examples/count_zeros.ptx) from their source with NVIDIA's run-time
compiler, without a GPU.

usage: scripts/ptx.py            writes the files
       scripts/ptx.py --check    says whether they are what the source gives: PASS, FAIL and SKIP lines

The compiler is a wheel (23 MB) that pip fetches once into target/nvrtc; nothing of it becomes part of a package. Without it
--check still compares the checksum of the sources that the files name. The version is the oldest of CUDA 12: it decides
which drivers take the PTX (525 and newer).
"""

import ctypes
import difflib
import glob
import hashlib
import os
import subprocess
import sys
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDER = os.path.join(ROOT, "src/gpu/cuda")
CACHE = os.path.join(ROOT, "target/nvrtc")
WHEEL = "nvidia-cuda-nvrtc-cu12==12.0.140"
WHEEL_SHA256 = "8e94e991d85c422de4da87bdc7472fdc1364367bd4aace7000b559cd33122071"
OPTIONS = ["--gpu-architecture=compute_80", "-std=c++17", "--include-path=" + FOLDER]
# `user` has a function that the driver's linker puts in: the third file is an example of one.
LINKED = ["--relocatable-device-code=true"]
FILES = {
    "src/gpu/cuda/knet.ptx": ("src/gpu/cuda/knet.cu", []),
    "src/gpu/cuda/knet_bench.ptx": ("src/gpu/cuda/knet_bench.cu", []),
    "src/gpu/cuda/knet_user.ptx": ("src/gpu/cuda/knet_user.cu", LINKED),
    "docs/examples/count_zeros.ptx": ("docs/examples/count_zeros.cu", LINKED),
}


class Unavailable(Exception):
    """The compiler cannot be had here."""


def fetch():
    """The path of the compiler's library."""
    library = os.path.join(CACHE, "nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
    if os.path.exists(library):
        return library
    os.makedirs(CACHE, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--only-binary=:all:", "--platform", "manylinux1_x86_64", "--dest", CACHE, WHEEL]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    except subprocess.TimeoutExpired:
        raise Unavailable("pip did not fetch it within 100 s")
    if done.returncode != 0:
        raise Unavailable("pip: " + (done.stderr.strip().splitlines() or ["no word"])[-1])
    for wheel in glob.glob(os.path.join(CACHE, "*.whl")):
        with open(wheel, "rb") as file:
            if hashlib.sha256(file.read()).hexdigest() != WHEEL_SHA256:
                raise Unavailable(f"{os.path.basename(wheel)} has another checksum than the one that is wanted")
        # Whole, or not at all under its name.
        scratch = f"{CACHE}.{os.getpid()}"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(scratch)
        for name in os.listdir(scratch):
            os.rename(os.path.join(scratch, name), os.path.join(CACHE, name))
        os.rmdir(scratch)
        os.remove(wheel)
    return library


class Compiler:
    def __init__(self):
        try:
            self.library = ctypes.CDLL(fetch())
        except OSError as error:
            raise Unavailable(str(error))

    def call(self, name, *arguments):
        return getattr(self.library, "nvrtc" + name)(*arguments)

    def text(self, kind, program):
        size = ctypes.c_size_t()
        self.call(f"Get{kind}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(f"Get{kind}", program, buffer)
        return buffer.value.decode()

    def compile(self, path, options):
        name = os.path.basename(path)
        with open(os.path.join(ROOT, path), "rb") as file:
            source = file.read()
        program = ctypes.c_void_p()
        if self.call("CreateProgram", ctypes.byref(program), source, name.encode(), 0, None, None) != 0:
            sys.exit(f"{name}: the compiler does not take it")
        words = [word.encode() for word in options]
        status = self.call("CompileProgram", program, len(words), (ctypes.c_char_p * len(words))(*words))
        if status != 0:
            sys.exit(f"{name}:\n{self.text('Log', program)}")
        text = self.text("PTX", program)
        self.call("DestroyProgram", ctypes.byref(program))
        return text


def sources(name):
    """The checksum of everything that a file is made of."""
    source, options = FILES[name]
    digest = hashlib.sha256(" ".join([WHEEL, *options]).encode())
    headers = glob.glob(os.path.join(FOLDER, "*.h")) + glob.glob(os.path.join(FOLDER, "*.cuh"))
    # One includes another.
    for path in [os.path.join(ROOT, source), os.path.join(FOLDER, "knet.cu"), *sorted(headers)]:
        with open(path, "rb") as file:
            digest.update(os.path.basename(path).encode() + b"\0" + file.read() + b"\0")
    return digest.hexdigest()


def make(compiler, name):
    source, options = FILES[name]
    head = f"// Made by scripts/ptx.py from {source}; not to be edited. Sources: {sources(name)}\n"
    return head + compiler.compile(source, OPTIONS + options)


def read(name):
    try:
        with open(os.path.join(ROOT, name)) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def check():
    good = True

    def verdict(passed, name, words):
        nonlocal good
        good = good and passed
        print(f"{'PASS' if passed else 'FAIL'} {name}")
        if not passed:
            print(words, file=sys.stderr)

    again = "run scripts/ptx.py and commit what it writes"
    for name in FILES:
        verdict(sources(name) in read(name).split("\n", 1)[0], f"{name} names the sources as they are", again)
    try:
        compiler = Compiler()
    except Unavailable as words:
        for name in FILES:
            print(f"SKIP {name} is what its source gives: {WHEEL} is not to be had: {words}")
        return good
    for name in FILES:
        lines = difflib.unified_diff(read(name).splitlines(), make(compiler, name).splitlines(), "committed", "made", n=1, lineterm="")
        difference = "\n".join(list(lines)[:20])
        verdict(not difference, f"{name} is what its source gives", f"{difference}\n{again}")
    return good


def main(arguments):
    if arguments == ["--check"]:
        sys.exit(0 if check() else 1)
    if arguments:
        print(__doc__, file=sys.stderr if arguments != ["--help"] else sys.stdout)
        sys.exit(0 if arguments == ["--help"] else 64)
    try:
        compiler = Compiler()
    except Unavailable as words:
        sys.exit(f"{WHEEL} is not to be had: {words}")
    for name in FILES:
        text = make(compiler, name)
        with open(os.path.join(ROOT, name), "w") as file:
            file.write(text)
        print(f"{name}: {len(text)} bytes")


main(sys.argv[1:])
