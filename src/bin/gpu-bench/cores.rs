//! The CPU version on one core or on several.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Barrier;
use std::thread;

use knet::gpu::KernelState;
use knet::time::monotonic;

use crate::arguments::{Arguments, Kernel};
use crate::measure::{Sample, cpu_time};
use crate::workload::{Packets, Subject};
use crate::{Stop, Watch};

/// Packets between two looks at the clock.
const PACKETS: usize = 256;

/// The CPU version of a kernel, once for each thread, with the packets that the thread goes through.
pub(crate) struct Cores {
    threads: Vec<(Subject, Vec<u8>)>,
}

impl Cores {
    /// Shares `packets` out to `threads`.
    pub(crate) fn new(
        kernel: Kernel,
        arguments: &Arguments,
        packets: &Packets,
        threads: usize,
    ) -> Result<Self, String> {
        let share = packets.count.div_ceil(threads.max(1)).max(1) * packets.stride;
        let mut shares = packets.before.chunks(share).cycle();
        let threads = (0..threads)
            .map(|_| {
                let bytes = shares.next().unwrap_or_default().to_vec();
                Ok((Subject::new(kernel, arguments)?, bytes))
            })
            .collect::<Result<_, String>>()?;
        Ok(Self { threads })
    }

    /// Runs all of them for a while.
    pub(crate) fn measure(
        &mut self,
        packets: &Packets,
        arguments: &Arguments,
        watch: &Watch,
    ) -> Result<Sample, Stop> {
        let (start, is_over) = (Barrier::new(self.threads.len() + 1), AtomicBool::new(false));
        let size = (packets.bytes, packets.stride);
        thread::scope(|scope| {
            let mut working = Vec::new();
            for (subject, bytes) in &mut self.threads {
                let (start, is_over) = (&start, &is_over);
                let work = move || {
                    start.wait();
                    work(subject, bytes, size, is_over)
                };
                working.push(scope.spawn(work));
            }
            start.wait();
            let (begin, cpu) = (monotonic(), cpu_time());
            let mut said = Ok(());
            while said.is_ok() && monotonic() < begin + arguments.time() {
                thread::park_timeout(arguments.time() / 50);
                said = watch.look();
            }
            is_over.store(true, Ordering::Relaxed);
            let done = working.into_iter().map(|thread| thread.join().unwrap_or(0));
            let done: u64 = done.sum();
            let seconds = monotonic().since(begin).as_secs_f64();
            said.map(|()| Sample {
                mpps: done as f64 / seconds / 1e6,
                latency: [0.0; 3],
                cpu: (cpu_time() - cpu).as_secs_f64() / seconds,
            })
        })
    }
}

/// Goes through the packets until it is over; how many that were.
fn work(
    subject: &mut Subject,
    bytes: &mut [u8],
    (length, stride): (usize, usize),
    is_over: &AtomicBool,
) -> u64 {
    let mut done = 0;
    loop {
        for some in bytes.chunks_mut(stride * PACKETS) {
            for packet in some.chunks_mut(stride) {
                let packet = packet.get_mut(..length).unwrap_or_default();
                subject.on_cpu(0, packet, &mut KernelState::default());
                done += 1;
            }
            if is_over.load(Ordering::Relaxed) {
                return done;
            }
        }
    }
}
