"""Random scripts of socket calls: what the fuzzer draws.

Each name has a rough kind, so that most calls mean something; a part of them is drawn for any name all the same. Nothing
blocks: sockets are non-blocking or the call says MSG_DONTWAIT. Amounts stay below every buffer, except in a fill that a
drain follows. Left out is what tests/conformance/differences.txt lists.
"""

STREAM, LISTENER, FRESH, EPOLL, PIPE_IN, PIPE_OUT = "stream", "listener", "fresh", "epoll", "pipe in", "pipe out"
SHUT, GONE = "shut", "gone"

POLL = ["IN", "OUT", "RDHUP", "IN|OUT", "IN|OUT|RDHUP", "IN|RDHUP", "0", "PRI", "PRI|IN", "PRI|IN|OUT", "RDNORM", "WRNORM"]
INTEREST = ["IN", "OUT", "IN|OUT", "IN|RDHUP", "IN|OUT|RDHUP", "0", "RDHUP", "IN|PRI", "PRI"]
MODES = ["", "", "|ET", "|ET", "|ONESHOT", "|ET|ONESHOT"]
SENDS = ["send", "send", "send", "write", "writev", "sendto", "sendmsg", "sendmmsg"]
RECEIVES = ["recv", "recv", "recv", "recvfrom", "recvmsg", "recvmmsg"]
SWITCHES = ["SO_KEEPALIVE", "SO_REUSEADDR", "TCP_NODELAY", "SO_OOBINLINE", "TCP_QUICKACK", "SO_TIMESTAMP", "SO_TIMESTAMPNS", "IP_RECVERR"]
NUMBERS = [("SO_RCVLOWAT", [1, 2, 50]), ("TCP_KEEPIDLE", [5, 70]), ("TCP_USER_TIMEOUT", [0, 9000]), ("IP_TOS", [0, 16]), ("SO_PRIORITY", [0, 5]),
           ("SO_PEEK_OFF", [-1, 0, 3]), ("IP_MINTTL", [0, 64]), ("TCP_NOTSENT_LOWAT", [0, 100_000]), ("TCP_LINGER2", [0, 5]), ("TCP_SYNCNT", [2, 6])]
MOST_BYTES = 300
MOST_NAMES = 14


class Draw:
    def __init__(self, random, length):
        self.random = random
        self.lines = ["handle PIPE"]
        self.kinds = {}
        self.ports = 0
        self.bound = []
        self.count = 0
        while len(self.lines) < length:
            self.draw()

    # Names

    def name(self, kind):
        self.count += 1
        name = f"{kind[0]}{self.count}"
        self.kinds[name] = kind
        return name

    def some(self, *kinds):
        """A name of these kinds, rarely of any."""
        fitting = [name for name, kind in self.kinds.items() if kind in kinds]
        if self.random.random() < 0.06 or not fitting:
            fitting = list(self.kinds) or ["-1"]
        return self.random.choice(fitting)

    def pick(self, choices):
        return self.random.choice(choices)

    def add(self, *words):
        self.lines.append(" ".join(str(word) for word in words))

    def room(self):
        return sum(kind != GONE for kind in self.kinds.values()) < MOST_NAMES

    # Calls

    def draw(self):
        calls = [
            (6, self.pair), (4, self.listener), (3, self.fresh), (2, self.epoll), (1, self.pipe), (24, self.send), (26, self.receive),
            (14, self.poll), (5, self.polls), (4, self.select), (16, self.control), (16, self.wait), (6, self.shutdown), (7, self.close),
            (3, self.reset), (4, self.dup), (2, self.dup2), (5, self.connect), (6, self.accept), (2, self.listen), (2, self.bind),
            (4, self.option), (4, self.error), (3, self.look), (2, self.flags), (1, self.fill), (2, self.child), (1, self.info), (1, self.move),
            (1, self.small), (2, self.task), (1, self.nested), (5, self.urgent), (2, self.held), (2, self.message), (1, self.owner),
        ]
        if len(self.kinds) < 2:
            calls = [(3, self.pair), (2, self.listener), (1, self.fresh)]
        self.random.choices([call for _, call in calls], [weight for weight, _ in calls])[0]()

    def port(self):
        self.ports += 1
        return f"P+{self.ports - 1}" if self.ports > 1 else "P"

    def pair(self):
        if self.ports < 7 and self.room():
            client, server = self.name(STREAM), self.name(STREAM)
            self.add("pair", client, server, f"{self.pick(['own', 'own', 'own', 'own', 'lo'])}:{self.port()}")
            for name in (client, server):
                if self.random.random() < 0.7:
                    self.add("fcntl", name, "F_SETFL", "NONBLOCK")

    def listener(self):
        if self.ports < 7 and self.room():
            where = f"{self.pick(['own', 'own', 'own', 'any'])}:{self.port()}"
            name = self.name(LISTENER)
            self.add("listener", name, where, self.pick([1, 2, 8]))
            self.add("fcntl", name, "F_SETFL", "NONBLOCK")
            self.bound.append((name, where.replace("any", "own")))

    def fresh(self):
        if self.room():
            self.add("tcp", self.name(FRESH), "NONBLOCK")

    def epoll(self):
        if self.room():
            self.add("epoll", self.name(EPOLL))

    def pipe(self):
        if self.room():
            self.add("pipe", self.name(PIPE_IN), self.name(PIPE_OUT))

    def send(self):
        how = self.pick(SENDS)
        flags = "0" if how in ("write", "writev") else self.pick(["NOSIGNAL", "DONTWAIT|NOSIGNAL", "DONTWAIT", "DONTWAIT|EOR"])
        if how in ("write", "writev") and self.random.random() < 0.5:
            how, flags = "send", "DONTWAIT"
        self.add("send", self.some(STREAM, STREAM, FRESH), self.random.randint(0, MOST_BYTES), flags if "DONTWAIT" in flags else "DONTWAIT|NOSIGNAL",
                 how if how not in ("write", "writev") else "send")

    def receive(self):
        flags = self.pick(["DONTWAIT"] * 8 + ["DONTWAIT|PEEK", "DONTWAIT|WAITALL", "DONTWAIT|TRUNC", "DONTWAIT|PEEK|TRUNC", "DONTWAIT|ERRQUEUE"])
        self.add("recv", self.some(STREAM, STREAM, FRESH), self.pick([0, 1, 7, 64, MOST_BYTES, 5000]), flags, self.pick(RECEIVES))

    def ends(self):
        """Both ends of a living connection, in any order; None when there is none."""
        pairs = [line.split()[1:3] for line in self.lines if line.startswith("pair ")]
        live = [pair for pair in pairs if all(self.kinds.get(name) == STREAM for name in pair)]
        return self.random.sample(self.pick(live), 2) if live else None

    def urgent(self):
        """A mark, and what its reader sees of it."""
        ends = self.ends()
        if not ends:
            return
        writer, reader = ends
        self.add("send", writer, self.random.randint(0, 9), "DONTWAIT|NOSIGNAL|OOB", self.pick(["send", "sendmsg", "sendto"]))
        # Linux takes the mark of what lies behind a gap, or is read at this moment, sooner or later.
        self.add("pause", 5)
        for _ in range(self.random.randint(0, 4)):
            self.pick([
                lambda: self.add("recv", reader, self.pick([0, 1, 5]), self.pick(["OOB", "OOB|PEEK", "OOB|DONTWAIT"]), self.pick(["recv", "recvmsg"])),
                lambda: self.add("recv", reader, self.pick([1, 7, MOST_BYTES]), self.pick(["DONTWAIT", "DONTWAIT|PEEK", "DONTWAIT|WAITALL"])),
                lambda: self.add("sockatmark", reader),
                lambda: self.add("ioctl", reader, self.pick(["SIOCATMARK", "FIONREAD"])),
                lambda: self.add("poll", reader, self.pick(["PRI", "PRI|IN", "IN"])),
                lambda: self.add("select", reader, "rwx"),
                lambda: self.add("message", reader, self.pick([0, 1, 9]), self.pick(["DONTWAIT", "OOB"])),
                lambda: self.add("set", reader, "SO_OOBINLINE", self.pick([0, 1])),
                self.wait,
            ])()

    def held(self):
        """Bytes that wait behind a cork or for more, and what lets them go."""
        ends = self.ends()
        if not ends:
            return
        writer, reader = ends
        corked = self.random.random() < 0.5
        if corked:
            self.add("set", writer, "TCP_CORK", 1)
        self.add("send", writer, self.random.randint(1, 90), "DONTWAIT|NOSIGNAL" + ("" if corked else "|MORE"))
        if self.random.random() < 0.5:
            self.add(*self.pick([["ioctl", reader, "FIONREAD"], ["ioctl", writer, "SIOCOUTQNSD"], ["send", writer, 9, "DONTWAIT|NOSIGNAL|MORE"]]))
        self.add(*(["set", writer, "TCP_CORK", 0] if corked else ["send", writer, 3, "DONTWAIT|NOSIGNAL"]))
        self.add("pause", 5)

    def message(self):
        self.add("message", self.some(STREAM, STREAM, FRESH), self.pick([0, 1, 50]), self.pick(["DONTWAIT", "DONTWAIT|PEEK", "DONTWAIT|TRUNC"]))

    def owner(self):
        self.add("fcntl", self.some(STREAM, LISTENER, FRESH), *self.pick([["F_SETOWN", "self"], ["F_SETOWN", 0], ["F_GETOWN"], ["F_GETSIG"]]))

    def poll(self):
        self.add("poll", self.some(STREAM, LISTENER, FRESH), self.pick(POLL))

    def polls(self):
        names = {self.some(STREAM, LISTENER, FRESH, PIPE_IN, PIPE_OUT) for _ in range(4)}
        self.add("polls", *(f"{name}={self.pick(POLL)}" for name in sorted(names)))

    def select(self):
        self.add("select", self.some(STREAM, LISTENER, FRESH), self.pick(["r", "w", "rw", "rwx"]))

    def control(self):
        epolls = [name for name, kind in self.kinds.items() if kind == EPOLL]
        if not epolls:
            return self.epoll()
        target = self.some(STREAM, STREAM, LISTENER, FRESH, PIPE_IN, PIPE_OUT)
        if self.kinds.get(target) == EPOLL:
            return None
        how = self.pick(["ADD", "ADD", "ADD", "MOD", "MOD", "DEL"])
        return self.add("ctl", self.pick(epolls), how, target, *([] if how == "DEL" else [self.pick(INTEREST) + self.pick(MODES)]))

    def wait(self):
        if any(kind == EPOLL for kind in self.kinds.values()):
            self.add("wait", self.some(EPOLL))

    def shutdown(self):
        name = self.some(STREAM, STREAM, STREAM, LISTENER)
        if self.kinds.get(name) == SHUT:
            return
        self.add("shutdown", name, self.pick(["RD", "WR", "WR", "RDWR"]))
        # A second one is a reviewed difference.
        if self.kinds.get(name) == LISTENER:
            self.kinds[name] = SHUT

    def close(self):
        name = self.some(*{kind for kind in self.kinds.values() if kind != GONE} or {GONE})
        self.add("close", name)
        if name in self.kinds:
            self.kinds[name] = GONE

    def reset(self):
        name = self.some(STREAM)
        self.add("reset", name)
        if name in self.kinds:
            self.kinds[name] = GONE

    def dup(self):
        if self.room():
            old = self.some(STREAM, LISTENER, FRESH, EPOLL)
            self.add("dup", self.name(self.kinds.get(old, GONE)), old)

    def dup2(self):
        old, over = self.some(STREAM, LISTENER), self.some(STREAM, FRESH)
        if self.kinds.get(over) in (STREAM, FRESH) and self.kinds.get(old) != GONE:
            self.add("dup2", old, over)
            self.kinds[over] = self.kinds.get(old, GONE)

    def connect(self):
        where = self.pick(self.bound)[1] if self.bound and self.random.random() < 0.7 else f"own:P+{self.random.randint(0, 7)}"
        names = [name for name, kind in self.kinds.items() if kind in (FRESH, STREAM)]
        if names:
            self.add("connect", self.pick(names), where)

    def accept(self):
        if self.room():
            self.add("accept", self.name(STREAM), self.some(LISTENER), *self.pick([[], ["NONBLOCK"], ["CLOEXEC"]]))

    def listen(self):
        # A socket whose connect failed is a reviewed difference, so only what listens or is connected.
        self.add("listen", self.some(LISTENER, STREAM), self.pick([0, 1, 8]))

    def bind(self):
        # What was connected once stays bound, a reviewed difference; so only listeners.
        names = [name for name, kind in self.kinds.items() if kind == LISTENER]
        if names:
            self.add("bind", self.pick(names), f"own:P+{self.random.randint(0, 7)}")

    def option(self):
        name = self.some(STREAM, LISTENER, FRESH)
        if self.random.random() < 0.5:
            what, value = self.pick(SWITCHES), self.pick([0, 1])
        else:
            what, values = self.pick(NUMBERS)
            value = self.pick(values)
        self.add("set", name, what, value)
        if what != "TCP_QUICKACK":
            self.add("get", name, what)

    def error(self):
        self.add("get", self.some(STREAM, FRESH, LISTENER), "SO_ERROR")

    def look(self):
        self.add(self.pick(["sockname", "peername"]), self.some(STREAM, LISTENER, FRESH))

    def flags(self):
        self.add("fcntl", self.some(STREAM, LISTENER, FRESH, EPOLL), self.pick(["F_GETFL", "F_GETFD"]))

    def info(self):
        self.add("ioctl", self.some(STREAM, STREAM, FRESH), "FIONREAD")

    def fill(self):
        pairs = [line.split() for line in self.lines if line.startswith("pair ")]
        live = [words for words in pairs if self.kinds.get(words[1]) == self.kinds.get(words[2]) == STREAM]
        # Behind shutdown(SHUT_RD) an empty queue is an end, and when it is empty is left to chance.
        if not live or any(line.startswith("shutdown") for line in self.lines):
            return
        _, client, server, _ = self.pick(live)
        self.add("skip", server)
        self.add("fill", client)
        for _ in range(self.random.randint(0, 3)):
            self.pick([lambda: self.add("poll", client, "IN|OUT"), lambda: self.add("send", client, 10, "DONTWAIT|NOSIGNAL"), self.wait])()
        self.add("drain", server)

    def small(self):
        """A connection with the smallest buffers, filled and drained, and then left alone but for its end."""
        if self.ports < 7 and self.room():
            client, server = self.name(SHUT), self.name(SHUT)
            self.add("pair", client, server, f"own:{self.port()}")
            self.add("set", server, "SO_RCVBUF", self.pick([1, 2304, 9000]))
            self.add("set", client, "SO_SNDBUF", self.pick([1, 4608, 9000]))
            self.add("fill", client)
            self.add("polls", f"{client}=IN|OUT", f"{server}=IN|OUT")
            self.add("drain", server)
            self.add("polls", f"{client}=IN|OUT", f"{server}=IN|OUT")
            self.add(self.pick(["close", "reset"]), self.pick([client, server]))

    def task(self):
        """A call in another thread, and what may end it."""
        pairs = [line.split() for line in self.lines if line.startswith("pair s")]
        live = [words for words in pairs if self.kinds.get(words[1]) == self.kinds.get(words[2]) == STREAM]
        if not live:
            return
        _, client, server, _ = self.pick(live)
        self.add("skip", server)
        self.add("fcntl", server, "F_SETFL", 0)
        self.add("set", server, "SO_RCVTIMEO", "0,200000")
        self.add("handle", "USR1", *self.pick([[], ["RESTART"]]))
        self.add("bg", "recv", server, self.pick([1, 20]), self.pick(["0", "PEEK", "WAITALL"]), self.pick(["recv", "recvmsg"]))
        event = self.pick([["send", client, 7, "NOSIGNAL|DONTWAIT"], ["shutdown", client, "WR"], ["shutdown", server, "RD"], ["shutdown", server, "RDWR"], ["kill", "USR1"], ["reset", client]])
        self.add(*event)
        if event[0] == "reset":
            self.kinds[client] = GONE
        self.add("join")
        self.add("set", server, "SO_RCVTIMEO", "0,0")
        self.add("fcntl", server, "F_SETFL", "NONBLOCK")

    def nested(self):
        epolls = [name for name, kind in self.kinds.items() if kind == EPOLL]
        if len(epolls) > 1:
            self.add("ctl", self.pick(epolls), self.pick(["ADD", "ADD", "MOD", "DEL"]), self.pick(epolls), self.pick(["IN", "IN|ET", "IN|OUT", "IN|ONESHOT"]))

    def child(self):
        what = self.pick(["send", "recv", "close", "shutdown", "poll"])
        name = self.some(STREAM)
        words = {"send": [17, "DONTWAIT|NOSIGNAL"], "recv": [9, "DONTWAIT"], "close": [], "shutdown": ["WR"], "poll": ["IN|OUT"]}[what]
        self.add("child", what, name, *words)

    def move(self):
        # A second message may meet the reset that the first one has caused, on Linux' loopback at once.
        how, most = self.pick([("send", 1), ("recv", 3)])
        self.add("batch", self.some(STREAM), how, self.random.randint(0, most), self.random.randint(1, 20), "DONTWAIT|NOSIGNAL")


def draw(random):
    return Draw(random, random.randint(8, 45)).lines
