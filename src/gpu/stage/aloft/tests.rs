//! A stage on a stand-in for the driver's library.

mod fault;
mod room;
mod user;
mod verdict;

use core::time::Duration;

use super::super::tests::{ends, pattern};
use super::*;
use crate::config::payload::{Gpu, Kernel, Mode, OnMatch, PayloadRule, WithoutGpu};
use crate::gpu::pipeline::tests::rule;
use crate::gpu::pipeline::{FrameMemory, Pipeline};
use crate::gpu::tests::{MODES, StandIn, load, with_user};

/// A stage on a stand-in, with a clock that only a test moves.
struct Flying {
    stand_in: StandIn,
    pipeline: Pipeline,
    now: Instant,
}

fn flow(index: u32) -> FlowId {
    FlowId {
        index,
        generation: 1,
    }
}

fn start(
    stand_in: StandIn,
    mode: Mode,
    rules: Vec<PayloadRule>,
    set: impl FnOnce(&mut Gpu),
) -> Flying {
    let mut config = stand_in.config(mode, rules);
    set(&mut config);
    let pipeline = load(&config);
    Flying {
        pipeline,
        stand_in,
        now: Instant::from_millis(1),
    }
}

impl Flying {
    fn stage(&mut self) -> &mut StreamStage {
        self.pipeline.stream.as_mut().unwrap()
    }

    fn offer(&mut self, id: FlowId, way: Direction, offset: u64, bytes: &mut [u8]) -> Departure {
        let now = self.now;
        let mut chunk = Chunk {
            direction: way,
            ends: ends(),
            offset,
            bytes,
        };
        self.stage().take_off(now, id, &mut chunk, id.index)
    }

    fn step(&mut self) {
        let now = self.now;
        self.stage().step(now);
    }

    /// Steps until what is on its way has come down.
    fn wait(&mut self, id: FlowId, way: Direction) -> Aloft {
        self.wait_until(|stage| stage.aloft(id, way) != Aloft::Flying);
        self.stage().aloft(id, way)
    }

    fn wait_until(&mut self, is_so: impl Fn(&StreamStage) -> bool) {
        let began = crate::time::monotonic();
        while !is_so(self.stage()) {
            let waited = crate::time::monotonic().since(began);
            assert!(waited < Duration::from_secs(60), "nothing came down");
            self.step();
            std::thread::yield_now();
        }
    }

    /// Sends a chunk through and puts it down; its verdict, and the bytes as they are then.
    fn judge(
        &mut self,
        id: FlowId,
        way: Direction,
        offset: u64,
        text: &[u8],
    ) -> (Verdict, Vec<u8>) {
        let mut bytes = text.to_vec();
        match self.offer(id, way, offset, &mut bytes) {
            Departure::Judged(verdict) => return (verdict, bytes),
            Departure::Waiting => panic!("there was no place"),
            Departure::Flying => {}
        }
        let verdict = match self.wait(id, way) {
            Aloft::Landed { verdict, .. } => verdict,
            other => panic!("{other:?}"),
        };
        assert!(self.stage().fetch(id, way, 0, &mut bytes));
        self.stage().put_down(id, way);
        (verdict, bytes)
    }

    fn count(&mut self, wanted: &str) -> u64 {
        count(self.stage(), wanted)
    }
}

fn count(stage: &StreamStage, wanted: &str) -> u64 {
    let mut found = None;
    stage.report(&mut |name, value| {
        if name == wanted {
            found = Some(value);
        }
    });
    found.unwrap()
}

/// Rules of every kernel. Their files stay until the end of the test.
fn all_rules(name: &str) -> (Vec<PayloadRule>, Vec<std::path::PathBuf>) {
    let marks = pattern(&format!("{name}-mark"), OnMatch::Mark(7));
    let resets = pattern(&format!("{name}-reset"), OnMatch::Reset);
    let file = |rule: &PayloadRule| match &rule.kernel {
        Kernel::Pattern { file, .. } => std::path::PathBuf::from(file),
        _ => unreachable!(),
    };
    let (first, second) = (file(&marks), file(&resets));
    std::fs::write(&first, "abc\ni\"BcD\"\n\"\\x00\\x00\"\ncab\n").unwrap();
    std::fs::write(&second, "never there\n").unwrap();
    let key = std::env::temp_dir().join(format!("knet-aloft-{}-{name}", std::process::id()));
    std::fs::write(&key, "0123456789abcdef".repeat(4)).unwrap();
    let cipher = rule(Kernel::Chacha20 {
        key_file: key.to_str().unwrap().to_owned(),
    });
    let rules = vec![
        marks,
        rule(Kernel::Stats),
        cipher,
        rule(Kernel::Crc32c),
        resets,
    ];
    (rules, vec![key])
}

fn one_pattern(name: &str) -> Vec<PayloadRule> {
    vec![pattern(name, OnMatch::Reset)]
}
