"""The laboratory as seen by the application tests: one lab, servers in it, sockets on the kernel client's side."""

import atexit
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback

from folder import own, sweep, work_folder

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LAB = os.path.join(ROOT, "scripts", "lab.sh")
SERVER = "10.77.0.1"
CLIENT = "10.77.0.2"
CLONE_NEWNET = 0x40000000
# Everything on the kernel: a case that fails so is wrong itself. Nothing is proven about who served.
ON_THE_KERNEL = os.environ.get("KNET_TEST_KERNEL") == "1"

_libc = ctypes.CDLL(None, use_errno=True)


def _end(_signal, _frame):
    raise KeyboardInterrupt


# Whoever ends a runner (also a time limit) gets the laboratory taken down.
signal.signal(signal.SIGTERM, _end)


def leave_the_network():
    """Moves this process to a network of its own, which has a loopback only, so that two runs never meet on a port.

    Needs root; without it nothing happens."""
    if os.geteuid() == 0 and _libc.unshare(CLONE_NEWNET) == 0:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def wait_for(what, condition, seconds=10.0):
    """Waits until condition() is true; raises with `what` when it does not become so."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.02)


def apart():
    """The next labs lie in a folder of their own, so that its mode may be changed."""
    folder = work_folder("labs", remove_labs)
    os.environ["KNET_LAB_DIR"] = folder
    atexit.register(shutil.rmtree, folder, True)


def labs():
    """The folder in which lab.sh keeps what it knows of each lab."""
    base = os.environ.get("XDG_RUNTIME_DIR", "/tmp")
    return os.environ.get("KNET_LAB_DIR") or os.path.join(base, f"knet-lab-{os.getuid()}")


def remove_lab(state):
    """Takes down a lab whose runner is dead: its programs, namespaces and folder."""
    subprocess.run([LAB, "down", "--name", os.path.basename(state)], check=False, timeout=60, stdout=subprocess.DEVNULL,
                   env={**os.environ, "KNET_LAB_DIR": os.path.dirname(state)})


def remove_labs(folder):
    """As `remove_lab`, for a folder of labs that belonged to one runner."""
    for name in os.listdir(folder):
        if os.path.isfile(os.path.join(folder, name, "device")):
            remove_lab(os.path.join(folder, name))
    shutil.rmtree(folder)


# Labs that are up: taken down also when a test's set-up fails or the run is told to end.
_up = []


@atexit.register
def take_down():
    for lab in list(_up):
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            lab.close()


class Lab:
    """A lab of its own name, so that two test runs side by side do not meet."""

    def __init__(self, device="af_packet", **options):
        self.name = f"t{os.getpid()}" + f"-{len(_up)}" * bool(_up)
        self.device = device
        sweep(labs(), "t", remove_lab)
        self.work = work_folder("test")
        self.processes = []
        # KNET_TEST_PROGRESS=inline runs any family with the program's own threads at the loop.
        if "KNET_TEST_PROGRESS" in os.environ:
            options.setdefault("progress", os.environ["KNET_TEST_PROGRESS"])
        self.progress = options.get("progress", "dedicated")
        extra = [part for key, value in options.items() for part in (f"--{key}", str(value))]
        _up.append(self)
        self.run("up", "--device", device, *extra)
        self.state = os.path.join(labs(), self.name)
        own(self.state)
        if ON_THE_KERNEL:
            subprocess.run(["ip", "-n", f"knet-{self.name}-s", "addr", "add", f"{SERVER}/24", "dev", "veth0"], check=True)

    def command(self, verb, *arguments):
        if verb == "server" and ON_THE_KERNEL:
            return ["ip", "netns", "exec", f"knet-{self.name}-s", *arguments]
        return [LAB, verb, "--name", self.name, *arguments]

    def run(self, verb, *arguments, **options):
        return subprocess.run(
            self.command(verb, *arguments), check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=60, **options
        ).stdout

    def start(self, verb, *arguments, log="log", env=None):
        """Starts a command in the lab in a process group of its own."""
        path = os.path.join(self.work, log)
        with open(path, "ab") as out:
            process = subprocess.Popen(
                self.command(verb, *arguments), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                cwd=self.work, start_new_session=True, env={**os.environ, **(env or {})},
            )
        process.log = path
        self.processes.append(process)
        return process

    def open_to(self, uid, gid):
        """The server's end is for another user, whom the folders on the way to the build may keep out: his programs are
        started with what this returns, in a lab whose folders were made for it (see `apart`)."""
        for path in (os.path.dirname(self.state), self.state, self.work):
            os.chmod(path, 0o711)
        log = os.path.join(self.state, "server-host.log")
        with open(log, "ab"):
            pass
        for path in (os.path.join(self.state, "run-s"), log, self.work):
            os.chown(path, uid, gid)
        built = os.path.join(self.work, "built")
        os.mkdir(built, 0o755)
        for name in ("libknet_frame.so", "libknet_dpdk.so", "knetd"):
            kinds = (os.environ.get("KNET_BUILD", "release"), "debug")
            found = next(filter(os.path.exists, (os.path.join(ROOT, "target", kind, name) for kind in kinds)))
            shutil.copy(found, built)
        if ON_THE_KERNEL:
            return ["env"]
        return ["env", f"LD_PRELOAD={os.path.join(built, 'libknet_frame.so')}"]

    def client(self, *arguments, seconds=60, check=True):
        done = subprocess.run(
            self.command("client", *arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds,
        )
        assert not check or done.returncode == 0, f"{arguments[0]} ended with {done.returncode}: {done.stdout[-2000:]}"
        return done.stdout

    def shimmed(self, *arguments, seconds=60, check=True):
        """Runs a command at the server's end, under the shim, to its end; what it wrote."""
        done = subprocess.run(
            self.command("server", *arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            cwd=self.work, timeout=seconds,
        )
        text = done.stdout.decode(errors="replace")
        assert not check or done.returncode == 0, f"{arguments[0]} ended with {done.returncode}: {text[-2000:]}"
        return text

    def namespace(self, end):
        return f"/run/netns/knet-{self.name}-{end}"

    @contextlib.contextmanager
    def inside(self, end="c"):
        """The calling thread is in the namespace of an end ("s" or "c"): sockets made there stay there."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(self.namespace(end), os.O_RDONLY)
        try:
            if _libc.setns(there, CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            yield
        finally:
            _libc.setns(home, CLONE_NEWNET)
            os.close(there)
            os.close(home)

    def connect(self, port, timeout=10.0, address=SERVER, end="c"):
        with self.inside(end):
            peer = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        peer.settimeout(timeout)
        peer.connect((address, port))
        return peer

    def listens(self, port, address=SERVER):
        """Whether a connection there is taken."""
        try:
            self.connect(port, 2.0, address).close()
            return True
        except OSError:
            return False

    def configure(self, old, new):
        """The server's config has `new` for `old`, for whoever begins from now on. Returns what it was before."""
        path = os.path.join(self.state, "server.conf")
        with open(path, encoding="utf-8") as file:
            before = file.read()
        assert old in before, f"{path} has no {old}"
        with open(path, "w", encoding="utf-8") as file:
            file.write(before.replace(old, new))
        return before

    @contextlib.contextmanager
    def configured(self, old, new):
        """As `configure`, for who begins inside."""
        before = self.configure(old, new)
        try:
            yield
        finally:
            with open(os.path.join(self.state, "server.conf"), "w", encoding="utf-8") as file:
                file.write(before)

    def kernel_tcp(self, end="s"):
        """The kernel's own TCP counters in an end's namespace: must not move for an accelerated server."""
        with self.inside(end), open("/proc/thread-self/net/snmp", encoding="ascii") as file:
            lines = [line.split()[1:] for line in file if line.startswith("Tcp:")]
        return dict(zip(lines[0], map(int, lines[1])))

    def stats(self):
        """Counters of the server's hosts, added up; what one host names in two places counts once."""
        hosts = [{}]
        for line in self.run("status").splitlines():
            parts = line.split()
            if line.startswith(("server host:", "client host:")):
                hosts.append({})
            elif len(parts) == 2 and parts[1].isdigit():
                hosts[-1][parts[0]] = int(parts[1])
        names = {name for host in hosts for name in host}
        return {name: sum(host.get(name, 0) for host in hosts) for name in names}

    def end(self, process, how=signal.SIGTERM, seconds=10):
        if process.poll() is None:
            process.send_signal(how)
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        _up.remove(self)
        self.run("down")
        shutil.rmtree(self.work, ignore_errors=True)


def passive_opens_unmoved(lab, before, accepts_before, made):
    """Design section 7: the stack served all connections and the kernel none."""
    if ON_THE_KERNEL:
        return
    after = lab.kernel_tcp()
    for name in ("PassiveOpens", "InSegs"):
        assert after[name] == before[name], f"the kernel's {name} moved by {after[name] - before[name]}"
    served = lab.stats().get("flows_accepted", 0) - accepts_before
    assert served >= made, f"the stack accepted {served} of {made} connections"


@contextlib.contextmanager
def served(lab, made=1):
    """Inside, at least `made` connections are made to servers under the shim: the stack served all, the kernel none."""
    before, accepted = lab.kernel_tcp(), lab.stats().get("flows_accepted", 0)
    yield
    passive_opens_unmoved(lab, before, accepted, made)


@contextlib.contextmanager
def reached(lab, made=1):
    """Inside, programs under the shim make at least `made` connections: the stack carried all, the kernel none."""
    before, connected = lab.kernel_tcp(), lab.stats().get("flows_connected", 0)
    yield
    if ON_THE_KERNEL:
        return
    after = lab.kernel_tcp()
    for name in ("ActiveOpens", "InSegs"):
        assert after[name] == before[name], f"the kernel's {name} moved by {after[name] - before[name]}"
    count = lab.stats().get("flows_connected", 0) - connected
    assert count >= made, f"the stack made {count} of {made} connections"


def certificate(folder):
    """A self-signed certificate for the server's address; the paths of certificate and key."""
    cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30",
         "-subj", "/CN=knet", "-addext", f"subjectAltName=IP:{SERVER},IP:{CLIENT}", "-keyout", key, "-out", cert],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    return cert, key


def together(count, work):
    """Runs work(0) to work(count - 1) in threads of their own; raises the first fault."""
    faults = []

    def one(n):
        try:
            work(n)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=one, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]


def main(prefix, cases, setup, teardown):
    """Runs the cases in order, prints PASS, FAIL or SKIP for each, and leaves nothing running."""
    wanted = sys.argv[1:]
    failed = 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    context = setup()
    try:
        for case in cases:
            name = case.__name__
            if wanted and name not in wanted:
                continue
            begin = time.monotonic()
            try:
                reason = case(context)
                if isinstance(reason, str):
                    print(f"SKIP {prefix}::{name}: {reason}", flush=True)
                else:
                    print(f"PASS {prefix}::{name} ({time.monotonic() - begin:.1f} s)", flush=True)
            except BaseException as error:
                if isinstance(error, (KeyboardInterrupt, SystemExit)):
                    raise
                failed += 1
                print(f"FAIL {prefix}::{name}: {error!r}", flush=True)
                traceback.print_exc()
                for process in (getattr(context, "lab", None) or context).processes[-1:]:
                    with contextlib.suppress(OSError), open(process.log, errors="replace") as log:
                        sys.stderr.write(log.read()[-2000:])
    finally:
        teardown(context)
    sys.exit(1 if failed else 0)
