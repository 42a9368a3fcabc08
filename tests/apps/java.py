#!/usr/bin/env python3
"""Java under the shim: blocking sockets with threads, NIO with a selector, the HTTP client; peers on the kernel."""

import hashlib
import os
import subprocess

from harness import CLIENT, SERVER, Lab, main, reached, served, together, wait_for
from origin import Origin, content

ORIGIN = 9000

SERVERS = """
import java.io.*;
import java.net.*;
import java.nio.ByteBuffer;
import java.nio.channels.*;
import java.util.*;
import com.sun.net.httpserver.HttpServer;

public class Servers {
    static void blocking(String address) throws IOException {
        ServerSocket listener = new ServerSocket(7001, 128, InetAddress.getByName(address));
        while (true) {
            Socket peer = listener.accept();
            new Thread(() -> {
                try (peer) { peer.getInputStream().transferTo(peer.getOutputStream()); } catch (IOException gone) { }
            }).start();
        }
    }

    static void selecting(String address) throws IOException {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress(address, 7002), 128);
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (Iterator<SelectionKey> keys = selector.selectedKeys().iterator(); keys.hasNext(); ) {
                SelectionKey key = keys.next();
                keys.remove();
                if (key.isAcceptable()) {
                    SocketChannel peer = listener.accept();
                    if (peer == null) continue;
                    peer.configureBlocking(false);
                    peer.register(selector, SelectionKey.OP_READ, ByteBuffer.allocate(16384));
                    continue;
                }
                SocketChannel peer = (SocketChannel) key.channel();
                ByteBuffer bytes = (ByteBuffer) key.attachment();
                try {
                    if (key.isReadable() && peer.read(bytes) < 0) { peer.close(); continue; }
                    bytes.flip();
                    peer.write(bytes);
                    int left = bytes.remaining();
                    bytes.compact();
                    key.interestOps((left > 0 ? SelectionKey.OP_WRITE : 0) | (bytes.hasRemaining() ? SelectionKey.OP_READ : 0));
                } catch (IOException gone) { peer.close(); }
            }
        }
    }

    interface Server { void serve(String address) throws IOException; }

    static void start(Server server, String address) {
        new Thread(() -> {
            try { server.serve(address); } catch (IOException error) { error.printStackTrace(); System.exit(1); }
        }).start();
    }

    public static void main(String[] words) throws IOException {
        start(Servers::blocking, words[0]);
        start(Servers::selecting, words[0]);
        HttpServer web = HttpServer.create(new InetSocketAddress(words[0], 8080), 128);
        web.createContext("/", exchange -> {
            byte[] body = exchange.getRequestBody().readAllBytes();
            exchange.sendResponseHeaders(200, body.length == 0 ? -1 : body.length);
            if (body.length > 0) exchange.getResponseBody().write(body);
            exchange.close();
        });
        web.start();
    }
}
"""

CLIENTS = """
import java.net.*;
import java.net.http.*;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.security.MessageDigest;
import java.util.*;
import java.util.concurrent.CompletableFuture;

public class Clients {
    static String sha(byte[] bytes) throws Exception {
        return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
    }

    public static void main(String[] words) throws Exception {
        String origin = "http://" + words[0] + ":9000";
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        List<CompletableFuture<HttpResponse<byte[]>>> all = new ArrayList<>();
        for (int n = 0; n < 50; n++)
            all.add(client.sendAsync(HttpRequest.newBuilder(URI.create(origin + "/size/" + n * 1000)).build(), BodyHandlers.ofByteArray()));
        for (int n = 0; n < 50; n++)
            if (all.get(n).get().body().length != n * 1000) throw new Exception("length of " + n);
        byte[] body = client.send(HttpRequest.newBuilder(URI.create(origin + "/size/1000000")).build(), BodyHandlers.ofByteArray()).body();
        HttpRequest post = HttpRequest.newBuilder(URI.create(origin + "/")).POST(BodyPublishers.ofByteArray(body)).build();
        System.out.println(sha(body) + " " + client.send(post, BodyHandlers.ofString()).body());
        try (Socket peer = new Socket(words[0], 9000)) {
            peer.getOutputStream().write("GET /blocking HTTP/1.0\\r\\n\\r\\n".getBytes());
            String answer = new String(peer.getInputStream().readAllBytes());
            System.out.println(answer.substring(answer.lastIndexOf('\\n') + 1));
        }
        try { new Socket(words[0], 9999); } catch (ConnectException error) { System.out.println("refused"); }
        try { new Socket().connect(new InetSocketAddress("10.77.0.77", 80), 200); } catch (SocketTimeoutException error) { System.out.println("timed out"); }
        try (Socket peer = new Socket(words[0], 9000)) {
            peer.setSoTimeout(300);
            peer.getInputStream().read();
        } catch (SocketTimeoutException error) { System.out.println("nothing read"); }
    }
}
"""

# Java's own sockets are IPv6 ones where the system has it; those stay with the kernel.
JAVA = ["java", "-Djava.net.preferIPv4Stack=true", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp"]


class Java:
    def __init__(self):
        self.lab = Lab()
        work = self.lab.work
        for name, text in (("Servers", SERVERS), ("Clients", CLIENTS)):
            with open(os.path.join(work, f"{name}.java"), "w", encoding="ascii") as file:
                file.write(text)
        subprocess.run(["javac", "-nowarn", "Servers.java", "Clients.java"], check=True, cwd=work)
        self.origin = Origin(self.lab, ORIGIN)
        self.server = self.lab.start("server", *JAVA, work, "Servers", SERVER, log="java.log")
        for port in (7001, 7002, 8080):
            wait_for("java listens", lambda: self.lab.listens(port), 30)

    @property
    def processes(self):
        return self.lab.processes

    def close(self):
        self.origin.close()
        self.lab.close()


def echo(java, port):
    def talk(n):
        peer = java.lab.connect(port, 30.0)
        stream = peer.makefile("rb")
        for size in (1, 1_460, 16_384, 100_000):
            peer.sendall(content(size))
            assert stream.read(size) == content(size), (n, size)
        peer.shutdown(1)
        assert stream.read() == b""
        peer.close()

    with served(java.lab, 20):
        together(20, talk)


def blocking_sockets(java):
    echo(java, 7001)


def a_selector(java):
    echo(java, 7002)


def the_http_server(java):
    def post(n):
        body = content(n * 10_000 + 1)
        peer = java.lab.connect(8080, 30.0)
        peer.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert peer.makefile("rb").read().partition(b"\r\n\r\n")[2] == body
        peer.close()

    with served(java.lab, 20):
        together(20, post)


def clients(java):
    digest = hashlib.sha256(content(1_000_000)).hexdigest()
    with reached(java.lab, 4):
        out = java.lab.shimmed(*JAVA, java.lab.work, "Clients", CLIENT)
    assert out.splitlines() == [f"{digest} {digest}", "origin /blocking", "refused", "timed out", "nothing read"], out


if __name__ == "__main__":
    main("java", [blocking_sockets, a_selector, the_http_server, clients], Java, Java.close)
