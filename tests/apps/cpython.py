#!/usr/bin/env python3
"""CPython's own tests of sockets: on the kernel, under the shim on loopback, and under the shim at the stack's address.

A test that passes on the kernel and not under the shim is a failure, unless cpython_known.txt names it with a reason.

usage: cpython.py [loopback|stack] [MODULE...]
"""

import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile

from harness import SERVER, Lab, main

LONG = os.environ.get("KNET_TEST_LONG") == "1"
PYTHON = "/usr/bin/python3"
# The longest first.
MODULES = ("test_socket", "test_ssl", "test_asyncio", "test_selectors", "test_httplib", "test_socketserver")
# Minutes by themselves, or what they say depends on how busy the machine is.
SHORT = {"test_asyncio": ("test_events", "test_sock_lowlevel", "test_streams", "test_server", "test_selector_events", "test_sendfile")}
KNOWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cpython_known.txt")

# Runs tests by name and prints "= TEST RESULT WORDS" for each; with an address, every loopback one in the tests is that.
RUNNER = r"""
import faulthandler, importlib.machinery, importlib.util, os, sys, unittest
address, names = sys.argv[1], sys.argv[2:]

class Moved(importlib.machinery.SourceFileLoader):
    def get_code(self, name):
        path = self.get_filename(name)
        text = self.get_data(path).decode()
        # In test_ssl it is the name in a certificate.
        hosts = ("127.0.0.1",) if name == "test.test_ssl" else ("127.0.0.1", "localhost")
        for quoted in (quote + host + quote for quote in ("'", '"') for host in hosts):
            text = text.replace(quoted, repr(address))
        return compile(text, path, "exec", dont_inherit=True)

class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        moved = name.startswith("test.test_") or name == "test.support.socket_helper"
        found = super().find_spec(name, path, target) if moved else None
        if found is None or not isinstance(found.loader, importlib.machinery.SourceFileLoader):
            return None
        loader = Moved(name, found.origin)
        where = found.submodule_search_locations
        return importlib.util.spec_from_file_location(name, found.origin, loader=loader, submodule_search_locations=where)

if address:
    sys.meta_path.insert(0, Finder)

class Result(unittest.TestResult):
    def say(self, test, what, more=""):
        print("=", test.id().replace(" ", "_"), what, more.replace("\n", "|"), flush=True)
    def startTest(self, test):
        super().startTest(test)
        self.whole = True
        faulthandler.dump_traceback_later(60, exit=True)
        print("+", test.id().replace(" ", "_"), flush=True)
    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)
    def addSuccess(self, test): self.say(test, "passed")
    def addSkip(self, test, reason): self.say(test, "skipped", reason)
    def addExpectedFailure(self, test, error): self.say(test, "passed")
    def addUnexpectedSuccess(self, test): self.say(test, "failed", "unexpected success")
    def addFailure(self, test, error): self.say(test, "failed", self._exc_info_to_string(error, test))
    def addError(self, test, error): self.say(test, "failed", self._exc_info_to_string(error, test))
    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.say(test, "failed", self._exc_info_to_string(error, test))

from test import support
support.use_resources = ["cpu", "subprocess", "network"]
support.verbose = False
suite = unittest.defaultTestLoader.loadTestsFromNames(names)
suite.run(Result())
print("= end", flush=True)
os._exit(0)  # without the threads that a failed test left waiting
"""


ANCHOR = f"import socket, time; s = socket.create_server(('{SERVER}', 19_999)); time.sleep(3_600)"


def known():
    """{kind::test pattern: reason} of what is known to differ."""
    found = {}
    with open(KNOWN, encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                name, _, reason = line.strip().partition(" ")
                found[name] = reason
    return found


class Tests:
    def __init__(self):
        self.lab = Lab()
        with self.lab.inside("s"):
            for name in ("all", "lo"):
                with open(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6", "w", encoding="ascii") as file:
                    file.write("0")
        # Keeps the host, and with it the counts of what it served.
        self.lab.start("server", PYTHON, "-c", ANCHOR, log="anchor.log")
        self.known = known()
        # They mostly sleep.
        self.pool = concurrent.futures.ThreadPoolExecutor(6)
        self.runs = {}

    @property
    def processes(self):
        return self.lab.processes

    def begin(self, kinds, modules):
        """Starts all runs, the longest first."""
        for module in modules:
            for kind in ("kernel", *kinds):
                self.runs[kind, module] = self.pool.submit(self.run, kind, self.names(module))

    def run(self, kind, names, seconds=400):
        """{test: (result, words)} of what ran to its end; a test that never ended hangs."""
        address = SERVER if kind == "stack" else ""
        words = [PYTHON, "-W", "ignore", "-c", RUNNER, address, *names]
        if kind == "kernel":
            # A network of its own: no port is taken by the others.
            command = ["unshare", "-n", "sh", "-c", 'ip link set lo up; exec "$@"', "sh", *words]
        else:
            command = self.lab.command("server", *words)
        folder = tempfile.mkdtemp(dir=self.lab.work)
        path = os.path.join(folder, "out")
        with open(path, "wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True
            )
            self.lab.processes.append(process)
            process.log = path
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        results, begun, ended = {}, [], False
        with open(path, errors="replace", encoding="utf-8") as out:
            text = out.read()
        for line in text.splitlines():
            if line.startswith("+ "):
                begun.append(line.split()[1])
            elif line == "= end":
                ended = True
            elif line.startswith("= "):
                _, name, what, words = line.split(" ", 3)
                if results.get(name, ("",))[0] != "failed":
                    results[name] = (what, words)
        for name in begun:
            results.setdefault(name, ("hung", text[-1500:].replace("\n", "|")))
        if not ended and not any(result[0] == "hung" for result in results.values()):
            results["(the end of the run)"] = ("failed", text[-1500:].replace("\n", "|"))
        return results

    def names(self, module):
        if module in SHORT and not LONG:
            return [f"test.{module}.{name}" for name in SHORT[module]]
        return [f"test.{module}"] if module != "test_asyncio" else [f"test.test_asyncio.{name}" for name in asyncio_modules()]

    def compare(self, kind, module):
        native, shimmed = self.runs["kernel", module].result(), self.runs[kind, module].result()
        passed = [name for name, (what, _) in native.items() if what == "passed"]
        worse = [name for name in passed if shimmed.get(name, ("missing", ""))[0] != "passed"]
        if worse:
            # Alone: another test's time-out or port is not its fault. One that hangs is not asked again.
            again = self.run(kind, [name for name in worse if shimmed.get(name, ("",))[0] != "hung"])
            again_native = self.run("kernel", worse)
            worse = [
                name for name in worse
                if again.get(name, ("missing", ""))[0] != "passed" and again_native.get(name, ("",))[0] == "passed"
            ]
            shimmed.update(again)
        unknown = [name for name in worse if not any(re.fullmatch(pattern, f"{kind}::{name}") for pattern in self.known)]
        print(f"{kind} {module}: {len(passed)} pass on the kernel, {len(worse)} of them not under the shim", flush=True)
        for name in unknown:
            what, words = shimmed.get(name, ("missing", ""))
            print(f"  {name}: {what}: {'|'.join(words.rstrip('|').split('|')[-4 if what == 'hung' else -1:])[-400:]}", flush=True)
        assert len(passed) >= 10, f"{module}: only {len(passed)} tests pass on the kernel"
        assert not unknown, f"{len(unknown)} new failures: {unknown[:5]}"


def asyncio_modules():
    version = subprocess.run(
        [PYTHON, "-c", "import test.test_asyncio as t; print(t.__path__[0])"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    # Those of another system say so while they are loaded, which would end the run.
    return sorted(
        name.removesuffix(".py") for name in os.listdir(version)
        if re.fullmatch(r"test_\w+\.py", name) and not name.startswith("test_windows")
    )


def case(kind, module):
    def run(tests):
        tests.compare(kind, module)

    run.__name__ = f"{kind}_{module}"
    return run


def the_stack_served_them(tests):
    accepted, connected = (tests.lab.stats().get(name, 0) for name in ("flows_accepted", "flows_connected"))
    print(f"the stack accepted {accepted} and made {connected} connections", flush=True)
    assert accepted >= 20 and connected >= 20, (accepted, connected)


if __name__ == "__main__":
    wanted = set(sys.argv[1:])
    kinds = [kind for kind in ("loopback", "stack") if not wanted & {"loopback", "stack"} or kind in wanted]
    modules = [module for module in MODULES if not wanted & set(MODULES) or module in wanted]
    sys.argv[1:] = []

    def set_up():
        tests = Tests()
        tests.begin(kinds, modules)
        return tests

    def tear_down(tests):
        tests.pool.shutdown(wait=False, cancel_futures=True)
        tests.lab.close()

    cases = [case(kind, module) for module in modules for kind in kinds]
    main("cpython", cases + [the_stack_served_them] * ("stack" in kinds), set_up, tear_down)
