//! The rules of the config with their kernels, loaded once.

use core::cell::RefCell;
use core::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use super::accelerator::Accelerator;
use super::air::{Air, Grounded};
use super::builtin::Builtin;
use super::chunk::{Direction, Ends};
use super::kernel::PayloadKernel;
use super::mirror::Mirror;
use super::pool::BUFFERS_MAX;
use super::ptx::{KERNELS, USER_BYTES_MAX};
use super::room::Room;
use super::stage::{PacketStage, StreamStage};
use super::user::UserKernel;
use crate::config::is_inside;
use crate::config::payload::{Attach, Gpu, Kernel, Mode, OnMatch, PayloadRule};
use crate::ffi::cuda::{Lasting, Lent};

/// What a match of a kernel does.
#[derive(Debug)]
pub(super) enum Action {
    /// It is counted.
    Pass,
    /// The segment is dropped.
    Drop,
    /// Both ends are reset.
    Reset,
    /// A line is logged.
    Mark(u32),
    /// It is copied.
    Mirror,
}

/// A rule that can be run.
pub struct Rule {
    pub(super) kernel: Box<dyn PayloadKernel>,
    pub(super) action: Action,
    /// Where copies go.
    pub(super) mirror: Option<Mirror>,
    /// Its JSON path, for messages.
    pub(super) path: String,
    pub(super) attach: Attach,
    rx: bool,
    tx: bool,
    ports: Vec<u16>,
    networks: Vec<(Ipv4Addr, u8)>,
    pub(super) min_payload: usize,
    /// The kernel changes bytes.
    pub(super) writes: bool,
    /// Lines logged so far, and the last number.
    pub(super) marks: u64,
    pub(super) mark: u32,
}

impl core::fmt::Debug for Rule {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.debug_struct("Rule")
            .field("kernel", &self.kernel.name())
            .field("action", &self.action)
            .finish_non_exhaustive()
    }
}

impl Rule {
    /// Whether the rule is for the flows between these ends.
    pub(super) fn covers(&self, ends: Ends) -> bool {
        let port = |port| self.ports.contains(&port);
        let inside = |network| is_inside(*ends.remote.ip(), network);
        (self.ports.is_empty() || port(ends.local.port()) || port(ends.remote.port()))
            && (self.networks.is_empty() || self.networks.iter().copied().any(inside))
    }

    /// Whether the rule is for a segment with so many bytes between these ends.
    pub(super) fn sees(&self, ends: Ends, bytes: usize) -> bool {
        bytes > 0 && bytes >= self.min_payload && self.covers(ends)
    }

    /// The rule's mark, if it was given since there were `marks` of it.
    pub(super) fn mark_since(&self, marks: u64) -> Option<u32> {
        (self.marks != marks).then_some(self.mark)
    }

    /// There is no GPU for it: says what becomes of payload that only a GPU can judge.
    ///
    /// # Errors
    /// It must not pass.
    pub(super) fn do_without(&self, why: &str) -> Result<(), String> {
        let name = self.kernel.name();
        if self.kernel.refuses_the_cpu() {
            return Err(format!(
                "{}: only a GPU can run kernel {name}: {why} (\"without_gpu\": \"pass\" lets the payload pass)",
                self.path
            ));
        }
        if let Some(code) = self.kernel.code() {
            crate::warn!(
                "gpu kernel={name} function={} now=\"its payload passes unjudged\" reason=\"{why}\"",
                code.function
            );
        }
        Ok(())
    }

    /// Whether only a GPU can run its kernel.
    pub(super) fn needs_gpu(&self) -> bool {
        self.kernel.code().is_some()
    }

    /// Whether the rule is for bytes that go this way.
    pub(super) const fn takes(&self, direction: Direction) -> bool {
        match direction {
            Direction::Rx => self.rx,
            Direction::Tx => self.tx,
        }
    }
}

/// Every kernel of the config, ready to run. A place without a rule is None.
#[derive(Debug, Default)]
pub struct Pipeline {
    /// Looks at streams.
    pub stream: Option<StreamStage>,
    /// Looks at received segments.
    pub packet_rx: Option<PacketStage>,
    /// Looks at sent segments.
    pub packet_tx: Option<PacketStage>,
}

impl Pipeline {
    /// Reads the files that the rules name, builds their kernels for each of so many lcores, and puts them to work where
    /// `gpu.mode` says. May take a second for a large rules file or a GPU: it is for the start of a host, not for the loop.
    ///
    /// # Errors
    /// One line for the operator: the rule, the file and what is wrong with it, every rule's faults at once; or why there is
    /// no GPU where one is required.
    pub fn load(config: &Gpu, lcores: usize, frames: FrameMemory<'_>) -> Result<Vec<Self>, String> {
        let mut made = Vec::with_capacity(lcores);
        let mut told: Vec<Placement> = Vec::new();
        for (pipeline, place) in Self::load_with(config, lcores, KERNELS, frames)? {
            if !told.contains(&place) {
                place.tell();
                told.push(place);
            }
            made.push(pipeline);
        }
        Ok(made)
    }

    /// As [`Pipeline::load`] with the GPU's code.
    pub(super) fn load_with(
        config: &Gpu,
        lcores: usize,
        ptx: &str,
        frames: FrameMemory<'_>,
    ) -> Result<Vec<(Self, Placement)>, String> {
        let mirrors = RefCell::new(Vec::new());
        let mirror = |path: &str| Mirror::shared(path, &mut mirrors.borrow_mut()).map(Some);
        // All of them take what they need before one begins: a kernel that stays would hold up whoever takes memory or code.
        let ready: Result<Vec<Ready>, String> = (0..lcores)
            .map(|_| Ok(Self::build(config, &mirror)?.prepare(config, ptx, lcores, frames)))
            .collect();
        ready?
            .into_iter()
            .map(|ready| ready.start(config))
            .collect()
    }

    /// Says whether [`Pipeline::load`] for so many lcores would succeed, and where the kernels would run; writes nothing.
    ///
    /// # Errors
    /// As there.
    pub fn examine(config: &Gpu, lcores: usize) -> Result<Placement, String> {
        let made = Self::build(config, &|path| {
            let folder = Path::new(path).parent().unwrap_or_else(|| Path::new("/"));
            std::fs::metadata(folder).map(|_| None)
        })?;
        let ready = made.prepare(config, KERNELS, lcores, FrameMemory::Unknown);
        ready.start(config).map(|(_, place)| place)
    }

    /// Takes all of the GPU that the rules need, as one of so many lcores.
    fn prepare(mut self, config: &Gpu, ptx: &str, lcores: usize, frames: FrameMemory<'_>) -> Ready {
        let gpu = (config.mode != Mode::Cpu && !self.is_empty())
            .then(|| self.take_off(config, ptx, lcores, frames));
        Ready {
            pipeline: self,
            gpu,
        }
    }

    fn take_off(
        &mut self,
        config: &Gpu,
        ptx: &str,
        lcores: usize,
        frames: FrameMemory<'_>,
    ) -> Result<Taken, String> {
        let gpu = Accelerator::shared(config, ptx)?;
        gpu.enter().map_err(|fault| fault.to_string())?;
        let mut room = Room::new(&gpu, config, lcores).map_err(|fault| fault.to_string())?;
        let mut ground = |rules: Option<&mut [Rule]>, buffers| {
            rules
                .map(|rules| Grounded::new(&gpu, &mut room, config, rules, buffers))
                .transpose()
        };
        let stream = self.stream.as_mut().map(StreamStage::rules_mut);
        let stream = ground(stream, BUFFERS_MAX)?;
        let has_packets = self.packet_rx.is_some() || self.packet_tx.is_some();
        let lent = match frames {
            FrameMemory::Port(memory) if has_packets => gpu.lend(memory),
            _ => None,
        };
        // Frames that lie in registered memory need no buffer; one that does not is the exception then.
        let buffers = if lent.is_some() { 1 } else { BUFFERS_MAX };
        let packet_rx = self.packet_rx.as_mut().map(PacketStage::rules_mut);
        let packet_rx = ground(packet_rx, buffers)?;
        let packet_tx = self.packet_tx.as_mut().map(PacketStage::rules_mut);
        let packet_tx = ground(packet_tx, buffers)?;
        let payload_memory = match frames {
            FrameMemory::Port(_) if !has_packets => "",
            FrameMemory::Unknown => "",
            _ if lent.is_some() => " payload_memory=host",
            _ => " payload_memory=staged",
        };
        Ok(Taken {
            stages: [stream, packet_rx, packet_tx],
            lent,
            payload_memory,
        })
    }

    const fn is_empty(&self) -> bool {
        self.stream.is_none() && self.packet_rx.is_none() && self.packet_tx.is_none()
    }

    fn build(config: &Gpu, mirror: MakeMirror<'_>) -> Result<Self, String> {
        let (mut stream, mut packet_rx, mut packet_tx) = (Vec::new(), Vec::new(), Vec::new());
        let mut faults = Vec::new();
        let mut add = |place: &mut Vec<Rule>, rule: &PayloadRule| match load(rule, mirror) {
            Ok(rule) => place.push(rule),
            Err(fault) => faults.push(format!("{}: {fault}", rule.path)),
        };
        for rule in &config.pipeline {
            match rule.attach {
                Attach::Stream => add(&mut stream, rule),
                Attach::Packet => {
                    if rule.rx {
                        add(&mut packet_rx, rule);
                    }
                    if rule.tx {
                        add(&mut packet_tx, rule);
                    }
                }
            }
        }
        faults.dedup();
        if !faults.is_empty() {
            return Err(faults.join("; "));
        }
        let some = |rules: Vec<Rule>| (!rules.is_empty()).then_some(rules);
        Ok(Self {
            stream: some(stream).map(StreamStage::new),
            packet_rx: some(packet_rx).map(|rules| PacketStage::new(rules, Direction::Rx)),
            packet_tx: some(packet_tx).map(|rules| PacketStage::new(rules, Direction::Tx)),
        })
    }
}

/// Where the frames of the port lie.
#[derive(Clone, Copy)]
pub enum FrameMemory<'a> {
    /// Nobody has opened it.
    Unknown,
    /// The port says it when it is asked; None: where no GPU can be given it.
    Port(&'a dyn Fn() -> Option<Lasting>),
}

impl core::fmt::Debug for FrameMemory<'_> {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.write_str(match self {
            Self::Unknown => "Unknown",
            Self::Port(_) => "Port",
        })
    }
}

/// A pipeline that has not begun.
struct Ready {
    pipeline: Pipeline,
    /// What it has of the GPU, or why nothing; None: it runs on the CPU.
    gpu: Option<Result<Taken, String>>,
}

/// What a pipeline has of a GPU.
struct Taken {
    /// For streams, received and sent segments.
    stages: [Option<Grounded>; 3],
    lent: Option<Arc<Lent>>,
    /// For the operator.
    payload_memory: &'static str,
}

impl Taken {
    /// Why some rules have no room; None: all have.
    fn crowded(&self) -> Option<String> {
        let each: Vec<_> = self.stages.iter().flatten().collect();
        let crowded: Vec<_> = each.iter().filter_map(|stage| stage.crowded()).collect();
        (!crowded.is_empty()).then(|| crowded.join("; "))
    }

    /// Puts the kernels to work; says what runs them.
    fn start(self, pipeline: &mut Pipeline) -> Result<String, String> {
        let mut what = String::new();
        let mut begin = |stage: Option<Grounded>| -> Result<Option<Air>, String> {
            let started = stage.map(Grounded::start).transpose()?;
            Ok(started.map(|(air, name)| {
                what = name;
                air
            }))
        };
        let [stream, packet_rx, packet_tx] = self.stages;
        // All of them, or none.
        let (stream, packet_rx, packet_tx) = (begin(stream)?, begin(packet_rx)?, begin(packet_tx)?);
        if let (Some(stage), Some(air)) = (&mut pipeline.stream, stream) {
            stage.fly(air);
        }
        if let (Some(stage), Some(air)) = (&mut pipeline.packet_rx, packet_rx) {
            stage.fly(air, self.lent.clone());
        }
        if let (Some(stage), Some(air)) = (&mut pipeline.packet_tx, packet_tx) {
            stage.fly(air, self.lent);
        }
        what.push_str(self.payload_memory);
        Ok(what)
    }
}

impl Ready {
    fn start(self, config: &Gpu) -> Result<(Pipeline, Placement), String> {
        let Self { mut pipeline, gpu } = self;
        let crowded = match &gpu {
            Some(Ok(ready)) => ready.crowded(),
            _ => None,
        };
        if let Some(why) = crowded.as_ref().filter(|_| config.required) {
            return Err(format!("gpu.required: {why}"));
        }
        let place = match gpu.map(|ready| ready.and_then(|ready| ready.start(&mut pipeline))) {
            Some(Ok(name)) => match crowded {
                None => Placement::Gpu(name),
                Some(why) => Placement::Crowded(name, why),
            },
            Some(Err(why)) if config.required => return Err(format!("gpu.required: {why}")),
            Some(Err(why)) => Placement::NoGpu(why),
            None => Placement::Cpu,
        };
        let why = match &place {
            Placement::Gpu(_) | Placement::Crowded(..) => return Ok((pipeline, place)),
            Placement::Cpu => "the kernels run on the CPU here",
            Placement::NoGpu(why) => why,
        };
        for rule in pipeline.stream.iter().flat_map(StreamStage::rules) {
            rule.do_without(why)?;
        }
        Ok((pipeline, place))
    }
}

/// Where the kernels of a pipeline run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Placement {
    /// On the CPU, as the config says.
    Cpu,
    /// On this GPU, as far as they have a version for it.
    Gpu(String),
    /// On this GPU, but for rules that it has no room for: the CPU has those; which, and why.
    Crowded(String, String),
    /// On the CPU, because there is no GPU; why.
    NoGpu(String),
}

impl Placement {
    fn tell(&self) {
        match self {
            Self::Cpu => {}
            Self::Gpu(name) => crate::info!("gpu event=on device=\"{name}\""),
            Self::Crowded(name, why) => {
                crate::info!("gpu event=on device=\"{name}\"");
                crate::warn!("gpu event=crowded now=\"the CPU runs the rest\" reason=\"{why}\"");
            }
            Self::NoGpu(why) => {
                crate::warn!(
                    "gpu event=unusable now=\"the CPU runs every kernel\" reason=\"{why}\""
                );
            }
        }
    }
}

/// Makes the mirror of a path.
type MakeMirror<'a> = &'a dyn Fn(&str) -> std::io::Result<Option<Mirror>>;

fn load(rule: &PayloadRule, mirror: MakeMirror<'_>) -> Result<Rule, String> {
    let (on_match, mirror_file) = match &rule.kernel {
        Kernel::Pattern { on_match, .. } => (on_match, ""),
        Kernel::User(user) => (&user.on_match, user.mirror_file.as_str()),
        Kernel::Stats | Kernel::Chacha20 { .. } | Kernel::Crc32c => (&OnMatch::Pass, ""),
    };
    let (action, mirror_file) = match on_match {
        OnMatch::Pass => (Action::Pass, mirror_file),
        OnMatch::Drop => (Action::Drop, mirror_file),
        OnMatch::Reset => (Action::Reset, mirror_file),
        OnMatch::Mark(mark) => (Action::Mark(*mark), mirror_file),
        OnMatch::Mirror(path) => (Action::Mirror, path.as_str()),
    };
    let mirror = match mirror_file {
        "" => None,
        path => mirror(path).map_err(|error| format!("mirror_file {path}: {error}"))?,
    };
    Ok(Rule {
        kernel: kernel(rule)?,
        action,
        mirror,
        path: rule.path.clone(),
        attach: rule.attach,
        rx: rule.rx,
        tx: rule.tx,
        ports: rule.ports.clone(),
        networks: rule.networks.clone(),
        min_payload: usize::from(rule.min_payload),
        writes: rule.kernel.writes(),
        marks: 0,
        mark: 0,
    })
}

fn kernel(rule: &PayloadRule) -> Result<Box<dyn PayloadKernel>, String> {
    match &rule.kernel {
        Kernel::Pattern { file, .. } => read(file, RULES_FILE_BYTES_MAX)
            .and_then(|text| Builtin::Pattern(text).build())
            .map_err(|error| format!("patterns_file {file}: {error}")),
        Kernel::Stats => Builtin::Stats.build(),
        Kernel::Chacha20 { key_file } => read(key_file, KEY_FILE_BYTES_MAX)
            .and_then(|text| key(&text))
            .and_then(|key| Builtin::Chacha20(key).build())
            .map_err(|error| format!("key_file {key_file}: {error}")),
        Kernel::Crc32c => Builtin::Crc32c.build(),
        Kernel::User(user) => {
            let made =
                read(&user.file, USER_BYTES_MAX).and_then(|text| UserKernel::new(user, text));
            match made {
                Ok(kernel) => Ok(Box::new(kernel)),
                Err(error) => Err(format!("ptx_file {}: {error}", user.file)),
            }
        }
    }
}

/// The contents of a regular file of at most `max` bytes.
fn read(path: &str, max: u64) -> Result<Vec<u8>, String> {
    let about = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if !about.is_file() {
        return Err("not a regular file".to_owned());
    }
    if about.len() > max {
        return Err(format!("{} bytes, at most {max}", about.len()));
    }
    std::fs::read(path).map_err(|error| error.to_string())
}

/// A key of 64 hexadecimal digits; white space around it is no part of it.
fn key(text: &[u8]) -> Result<[u8; 32], String> {
    let wrong = || "64 hexadecimal digits are wanted".to_owned();
    let digits = text.trim_ascii();
    let mut key = [0; 32];
    if digits.len() != 2 * key.len() {
        return Err(wrong());
    }
    for (byte, pair) in key.iter_mut().zip(digits.chunks(2)) {
        let pair = core::str::from_utf8(pair).map_err(|_| wrong())?;
        if !pair.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
    }
    Ok(key)
}

/// 10 000 rules of 1 KiB.
const RULES_FILE_BYTES_MAX: u64 = 10 << 20;
const KEY_FILE_BYTES_MAX: u64 = 4_096;

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A rule for all flows and both ways.
    pub(in super::super) fn rule(kernel: Kernel) -> PayloadRule {
        PayloadRule {
            path: "gpu.pipeline[0]".to_owned(),
            kernel,
            rx: true,
            tx: true,
            attach: Attach::Stream,
            ports: Vec::new(),
            networks: Vec::new(),
            min_payload: 0,
        }
    }

    /// A pipeline of these rules.
    pub(in super::super) fn pipeline(rules: Vec<PayloadRule>) -> Result<Pipeline, String> {
        Pipeline::load(&Gpu::on_cpu(rules), 1, FrameMemory::Port(&|| None))
            .map(|mut all| all.remove(0))
    }

    #[test]
    fn every_file_that_cannot_be_used_is_told_at_once() {
        let missing = rule(Kernel::Pattern {
            file: "/nonexistent/rules".to_owned(),
            on_match: OnMatch::Reset,
        });
        let folder = rule(Kernel::Chacha20 {
            key_file: "/proc".to_owned(),
        });
        let fault = pipeline(vec![missing, folder]).unwrap_err();
        assert!(
            fault.contains("patterns_file /nonexistent/rules: "),
            "{fault}"
        );
        assert!(
            fault.contains("key_file /proc: not a regular file"),
            "{fault}"
        );
    }

    #[test]
    fn a_key_is_64_digits() {
        assert_eq!(
            key(format!(" {}\n", "0f".repeat(32)).as_bytes()),
            Ok([15; 32])
        );
        for wrong in ["", "00", &"0g".repeat(32), &"+1".repeat(32)] {
            assert!(key(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_rule_covers_its_ports_and_networks() {
        let ends = |local: &str, remote: &str| Ends {
            local: local.parse().unwrap(),
            remote: remote.parse().unwrap(),
        };
        let mut wanted = rule(Kernel::Stats);
        wanted.ports = vec![80];
        wanted.networks = vec![("10.1.0.0".parse().unwrap(), 16)];
        let rule = load(&wanted, &|_| Ok(None)).unwrap();
        assert!(rule.covers(ends("10.0.0.2:80", "10.1.2.3:4000")));
        assert!(rule.covers(ends("10.0.0.2:4000", "10.1.2.3:80")));
        assert!(!rule.covers(ends("10.0.0.2:81", "10.1.2.3:4000")));
        assert!(!rule.covers(ends("10.0.0.2:80", "10.2.2.3:4000")));
    }
}
