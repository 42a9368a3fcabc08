#!/usr/bin/env python3
"""Node.js under the shim: http, net and tls, as servers and as clients."""

import hashlib
import os
import ssl

from harness import CLIENT, SERVER, Lab, certificate, main, reached, served, together, wait_for
from origin import content, origins

ORIGIN, SECURE_ORIGIN = 9000, 9443

SERVERS = """
const fs = require('fs'), http = require('http'), net = require('net'), tls = require('tls'), crypto = require('crypto');
const [address, cert, key] = process.argv.slice(2);
const answer = (request, response) => {
  const digest = crypto.createHash('sha256');
  request.on('data', (part) => digest.update(part));
  request.on('end', () => {
    const size = Number(request.url.slice(1));
    response.end(request.method === 'POST' ? digest.digest('hex') : Buffer.alloc(size, 'knet '));
  });
};
http.createServer(answer).listen(8080, address);
// Half-open is allowed: what came before the client's FIN goes back behind it.
net.createServer({allowHalfOpen: true}, (peer) => { peer.on('error', () => {}); peer.pipe(peer); }).listen(7001, address);
tls.createServer({cert: fs.readFileSync(cert), key: fs.readFileSync(key)}, (peer) => peer.pipe(peer)).listen(7002, address);
"""

CLIENTS = """
const fs = require('fs'), http = require('http'), https = require('https'), net = require('net'), crypto = require('crypto');
const [address, cert] = process.argv.slice(2);
const ask = (library, options, body) => new Promise((done, fail) => {
  const request = library.request({host: address, ca: fs.readFileSync(cert), ...options}, (answer) => {
    const parts = [];
    answer.on('data', (part) => parts.push(part));
    answer.on('end', () => done(Buffer.concat(parts)));
  });
  request.on('error', fail);
  request.end(body);
});
const sha = (bytes) => crypto.createHash('sha256').update(bytes).digest('hex');
(async () => {
  const agent = new http.Agent({keepAlive: true, maxSockets: 10});
  const all = [];
  for (let n = 0; n < 100; n++) all.push(ask(http, {port: 9000, path: '/size/' + n * 1000, agent}));
  (await Promise.all(all)).forEach((body, n) => { if (body.length !== n * 1000) throw new Error('length of ' + n); });
  agent.destroy();
  for (const [library, port] of [[http, 9000], [https, 9443]]) {
    const body = await ask(library, {port, path: '/size/1000000'});
    console.log(sha(body), (await ask(library, {port, path: '/', method: 'POST', headers: {'Content-Length': body.length}}, body)).toString());
  }
  await new Promise((done) => net.connect(9999, address).on('error', (error) => { console.log(error.code); done(); }));
  await new Promise((done) => {
    const peer = net.connect(80, '10.77.0.77');
    peer.setTimeout(200, () => { console.log('timeout'); peer.destroy(); done(); });
  });
})();
"""


class Node:
    def __init__(self):
        self.lab = Lab()
        self.cert, self.key = certificate(self.lab.work)
        self.origins = origins(self.lab, ORIGIN, SECURE_ORIGIN, self.cert, self.key)
        self.server = self.lab.start("server", "node", self.script("servers.js", SERVERS), SERVER, self.cert, self.key, log="node.log")
        for port in (8080, 7001, 7002):
            wait_for("node listens", lambda: self.lab.listens(port), 20)

    @property
    def processes(self):
        return self.lab.processes

    def script(self, name, text):
        path = os.path.join(self.lab.work, name)
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        return path

    def close(self):
        for origin in self.origins:
            origin.close()
        self.lab.close()


def http_server(node):
    def ask(n):
        peer = node.lab.connect(8080, 30.0)
        stream = peer.makefile("rb")
        for turn in range(10):
            size = n * 1_000 + turn
            peer.sendall(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % size)
            assert b"200 OK" in stream.readline()
            while (line := stream.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    assert int(line.split()[1]) == size
            assert stream.read(size) == (b"knet " * (size // 5 + 1))[:size]
        peer.close()

    with served(node.lab, 30):
        together(30, ask)
        body = content(5_000_000)
        peer = node.lab.connect(8080, 30.0)
        peer.sendall(b"POST / HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert peer.makefile("rb").read().endswith(hashlib.sha256(body).hexdigest().encode())
        peer.close()


def echo(wrap, port, node):
    def talk(n):
        peer = wrap(node.lab.connect(port, 30.0))
        stream = peer.makefile("rb")
        for size in (1, 1_460, 100_000):
            peer.sendall(content(size))
            assert stream.read(size) == content(size), (n, size)
        peer.close()

    with served(node.lab, 20):
        together(20, talk)


def net_server(node):
    echo(lambda peer: peer, 7001, node)
    with served(node.lab):
        peer = node.lab.connect(7001, 30.0)
        peer.sendall(b"behind the end")
        peer.shutdown(1)
        assert peer.makefile("rb").read() == b"behind the end"
        peer.close()


def tls_server(node):
    context = ssl.create_default_context(cafile=node.cert)
    echo(lambda peer: context.wrap_socket(peer, server_hostname=SERVER), 7002, node)


def clients(node):
    script = node.script("clients.js", CLIENTS)
    digest = hashlib.sha256(content(1_000_000)).hexdigest()
    with reached(node.lab, 12):
        out = node.lab.shimmed("node", script, CLIENT, node.cert)
    assert out.splitlines() == [f"{digest} {digest}"] * 2 + ["ECONNREFUSED", "timeout"], out


if __name__ == "__main__":
    main("node", [http_server, net_server, tls_server, clients], Node, Node.close)
