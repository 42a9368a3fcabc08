#!/usr/bin/env python3
"""The documents against the tree: links lead somewhere, commands and options exist, every message has an entry."""

import glob
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, "target", os.environ.get("KNET_BUILD", "debug"))
DOCUMENTS = ["README.md", *sorted(glob.glob("docs/**/*.md", root_dir=ROOT, recursive=True))]


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def anchor(heading):
    """As GitHub makes one of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def without_code(text):
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "", text)


def links():
    """Each relative link names a file of the tree, and a heading of it where it has an anchor."""
    faults = []
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)\s]+)\)", without_code(read(document))):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, name = target.partition("#")
            file = os.path.normpath(os.path.join(os.path.dirname(document), path)) if path else document
            if not os.path.exists(os.path.join(ROOT, file)):
                faults.append(f"{document}: {target} leads nowhere")
            elif name and file.endswith(".md"):
                headings = {anchor(line.lstrip("#")) for line in read(file).splitlines() if line.startswith("#")}
                if name not in headings:
                    faults.append(f"{document}: {file} has no heading #{name}")
    return faults


def code(document):
    """Every piece of code of a document: spans, indented and fenced lines."""
    text = read(document)
    for fence in re.findall(r"^```[^\n]*\n(.*?)^```", text, re.M | re.S):
        yield from fence.splitlines()
    for line in re.sub(r"^```.*?^```", "", text, flags=re.M | re.S).splitlines():
        if re.match(r" {4,}\S", line):
            yield line.strip()
        else:
            yield from re.findall(r"`([^`]+)`", line)


_help = {}


def help_of(words):
    """What a command of ours says with --help; None when there is none."""
    words = tuple(words)
    if words not in _help:
        done = subprocess.run([os.path.join(BUILD, words[0]), *words[1:], "--help"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        _help[words] = done.stdout if done.returncode == 0 else None
    return _help[words]


def known_command(words):
    """What is wrong with a call of knetctl or knetd; None when all of it exists."""
    command, rest = [words[0]], words[1:]
    while rest and re.fullmatch(r"[a-z][a-z-]+", rest[0]) and f"  {rest[0]} " in re.sub(r"\n", " \n", help_of(command) or ""):
        command.append(rest.pop(0))
    if len(command) == 1 and command[0] == "knetctl" and rest and re.fullmatch(r"[a-z]+", rest[0]):
        return f"no command {rest[0]}"
    for word in rest:
        if word == "--":
            break
        option = re.match(r"--[a-z][a-z-]*", word)
        if option and not re.search(rf"{option[0]}\b", help_of(command) or ""):
            return f"{' '.join(command)} has no {option[0]}"
    return None


def known_script(words):
    """As [`known_command`], for a script of ours: its options stand in its own usage."""
    path = words[0]
    if not os.path.exists(os.path.join(ROOT, path)):
        return f"there is no {path}"
    if not path.endswith((".sh", ".py")):
        return None
    text = read(path)
    # What it hands its arguments to counts as well.
    for other in re.findall(r"\b(?:benches|tests)/[\w/.]+", text):
        files = [other] if other.endswith(".py") else glob.glob(f"{other}/**/*.py", root_dir=ROOT, recursive=True)
        text += "".join(read(file) for file in files if os.path.isfile(os.path.join(ROOT, file)))
    for word in words[1:]:
        option = re.match(r"--[a-z][a-z-]*", word)
        # What stands behind a command of the laboratory is that command's.
        if re.fullmatch(r"[a-z]+-[a-z]+|python3|curl|knetctl", word) or word == "--":
            break
        if option and option[0] not in text and path != "scripts/setup-nic.sh":
            return f"{path} has no {option[0]}"
    return None


def commands():
    """Each call of a program of ours in a piece of code is one that it understands, each path of the tree is there."""
    faults = []
    seen = 0
    for document in DOCUMENTS:
        for line in code(document):
            for part in re.split(r"[|;&]|\s#", line):
                words = [word for word in part.split() if not re.fullmatch(r"[A-Z_]+=\S*", word)]
                for place, word in enumerate(words):
                    fault = None
                    tail = [word.strip("`,.:()\"'") for word in words[place:]]
                    if word in ("knetctl", "knetd") and (place == 0 or words[place - 1] in ("env", "LIST", "0-2")):
                        fault = known_command(tail)
                        seen += 1
                    elif re.match(r"(scripts|tests|src|docs|conf|packaging|benches|frame|dpdk|dpdk-sys)/[\w.*{},/-]+$", tail[0]):
                        if not re.search(r"[*{]", tail[0]):
                            fault = known_script(tail)
                            seen += 1
                    if fault:
                        faults.append(f"{document}: {line.strip()}: {fault}")
    assert seen > 50, f"only {seen} commands found"
    return faults


def without_tests(text):
    """A source file without comments and without what is built for tests only."""
    kept, lines, place = [], text.split("\n"), 0
    while place < len(lines):
        line = lines[place]
        if line.strip() == "#[cfg(test)]":
            indent = len(line) - len(line.lstrip())
            place += 1
            while place < len(lines):
                at = lines[place]
                if len(at) - len(at.lstrip()) == indent and at.rstrip().endswith((";", "}", ",")) and "#" not in at[: indent + 1]:
                    break
                place += 1
        elif not line.strip().startswith("//"):
            kept.append(line)
        place += 1
    return "\n".join(kept)


# Where a text of three words and more is for people.
SPOKEN = re.compile(
    r"src/attach/|src/host/(attach|family|launch|policy|port_lock|server|open|way_back)\.rs|src/device/(plugin|unix|builtin)"
    r"|dpdk/src/|src/preflight/|src/runtime/host\.rs|src/bin/knetd|src/bin/knetctl/(run|host|check|nic)\.rs"
)
# No messages: commands that are shown, shapes of a listing, and pieces that only join others.
NO_MESSAGE = re.compile(r"^[^a-z]*$|^[#.]|^echo |^hugepages of \{\} MiB|^ on node|^one of |^\{:<13\}", re.S)
HOLE = re.compile(r"\{[^{}]*\}")
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"', re.S)


def texts():
    """Every message of the program: where it stands, and its text."""
    found = []
    for path in sorted([*glob.glob("src/**/*.rs", root_dir=ROOT, recursive=True), *glob.glob("dpdk/src/*.rs", root_dir=ROOT)]):
        if "/tests" in path or path.endswith("tests.rs"):
            continue
        source = without_tests(read(path))
        for match in LITERAL.finditer(source):
            before = source[max(0, match.start() - 60) : match.start()]
            if re.search(r"(reason|expect|allow|help|value_name)\s*=\s*$|\.expect\(\s*$|assert\w*!|#!?\[|(info|debug)!\(\s*$", before):
                continue
            text = re.sub(r"\\\n\s*", "", match[1]).replace('\\"', '"')
            logged = re.search(r"\b(error|warn)!\(\s*$", before)
            if logged or (SPOKEN.match(path) and text.count(" ") >= 2 and not NO_MESSAGE.search(HOLE.sub("", text))):
                found.append((path, text))
    return found


def messages():
    """Each message has an entry in docs/troubleshooting.md: its longest piece between two holes is found there."""
    page = re.sub(r"\s+", " ", read("docs/troubleshooting.md").replace("\\|", "|"))
    faults = []
    spoken = texts()
    for path, text in spoken:
        pieces = [piece.strip() for piece in HOLE.split(text)]
        longest = re.sub(r"\s+", " ", max(pieces, key=len))
        if len(longest) >= 6 and longest not in page:
            faults.append(f"{path}: {text!r}: docs/troubleshooting.md says nothing of {longest!r}")
    assert len(spoken) > 200, f"only {len(spoken)} messages found"
    return faults


def main():
    failed = 0
    for check in (links, commands, messages):
        faults = check()
        failed += bool(faults)
        print(f"{'FAIL' if faults else 'PASS'} docs::{check.__name__}" + (f": {len(faults)} faults" if faults else ""))
        for fault in faults:
            print(f"  {fault}", file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
