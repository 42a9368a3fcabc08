#!/usr/bin/env python3
"""wget under the shim against servers on the kernel: one file, a site, a resumed and a refused transfer, TLS."""

import os

from harness import CLIENT, Lab, certificate, main, reached
from origin import content, origins

ORIGIN, SECURE_ORIGIN, SITE = 9000, 9443, 9001


class Wget:
    def __init__(self):
        self.lab = Lab()
        self.cert, key = certificate(self.lab.work)
        self.origins = origins(self.lab, ORIGIN, SECURE_ORIGIN, self.cert, key)

    @property
    def processes(self):
        return self.lab.processes

    def run(self, *words):
        """The exit status."""
        out = self.lab.shimmed("sh", "-c", 'wget -nv --tries=1 "$@"; echo "status $?"', "wget", *words)
        return int(out.splitlines()[-1].removeprefix("status ")), out

    def got(self, name):
        with open(os.path.join(self.lab.work, name), "rb") as file:
            return file.read()

    def close(self):
        for origin in self.origins:
            origin.close()
        self.lab.close()


def files(wget):
    with reached(wget.lab, 2):
        for size in (0, 1, 1_460, 20_000_000):
            for url in (f"http://{CLIENT}:{ORIGIN}", f"https://{CLIENT}:{SECURE_ORIGIN}"):
                status, out = wget.run("--ca-certificate", wget.cert, "-O", "got", f"{url}/size/{size}")
                assert status == 0, out
                assert wget.got("got") == content(size), size
    with reached(wget.lab):
        status, out = wget.run(*(f"http://{CLIENT}:{ORIGIN}/size/{n}" for n in range(100, 130)))
        assert status == 0, out
        assert all(wget.got(str(n)) == content(n) for n in range(100, 130))


def a_site(wget):
    """Recursive, from http.server on the kernel."""
    site = os.path.join(wget.lab.work, "site")
    os.mkdir(site)
    for n in range(20):
        with open(os.path.join(site, f"page{n}.html"), "w", encoding="ascii") as file:
            file.write(f"<a href='page{(n + 1) % 20}.html'>next</a> {'x' * n * 1_000}")
    server = wget.lab.start("client", "/usr/bin/python3", "-m", "http.server", "--bind", CLIENT, "--directory", site, str(SITE))
    try:
        with reached(wget.lab, 20):
            status, out = wget.run("--retry-connrefused", "--tries=50", "--waitretry=1", "-r", "-l", "30", "-nH", "-P", "copy", f"http://{CLIENT}:{SITE}/page0.html")
        assert status == 0, out
        for n in range(20):
            with open(os.path.join(site, f"page{n}.html"), "rb") as file:
                assert wget.got(f"copy/page{n}.html") == file.read()
    finally:
        wget.lab.end(server)


def what_fails(wget):
    for words, expected in (
        ([f"http://{CLIENT}:9999/"], 4), (["--timeout=1", "http://10.77.0.77/"], 4), ([f"http://{CLIENT}:{ORIGIN}/closed"], 4),
        ([f"https://{CLIENT}:{SECURE_ORIGIN}/"], 5), ([f"http://{CLIENT}:{ORIGIN}/healthy"], 0),
    ):
        status, out = wget.run("-O", "got", *words)
        assert status == expected, (words, status, out)


if __name__ == "__main__":
    main("wget", [files, a_site, what_fails], Wget, Wget.close)
