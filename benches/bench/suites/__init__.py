"""The suites, in the order in which they run: each has `seconds(options)`, a guess, and `run(options, progress)`, its rows."""

from . import connrate, cpu, flows, gpu, idle, memory, mixed, pingpong, preload, redis, stream

SUITES = {
    module.__name__.rsplit(".", 1)[1]: module
    for module in (redis, pingpong, stream, connrate, flows, idle, memory, preload, cpu, mixed, gpu)
}
