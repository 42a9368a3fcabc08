//! The GPU of the process: opened once, given up for good.

use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use super::drive::THREADS;
use super::user::UserCode;
use crate::config::payload::Gpu;
use crate::ffi::cuda::{
    ABSENT, Context, Device, DevicePointer, Driver, Fault, Function, Lasting, Lent, Module, Part,
    attribute,
};

/// An open GPU with the kernels loaded into a context of our own: a fault in it does not reach CUDA code of others.
#[derive(Debug)]
pub(super) struct Accelerator {
    pub(super) driver: &'static Driver,
    pub(super) context: Context,
    pub(super) device: Device,
    /// The kernels that we ship.
    pub(super) module: Module,
    /// Compute capability, times ten.
    capability: u32,
    /// For the operator.
    pub(super) name: String,
    off: AtomicBool,
    strikes: AtomicU32,
    /// The port's memory, once it was registered; None inside: it cannot be.
    lent: OnceLock<Option<Arc<Lent>>>,
}

/// Late batches that end it.
const STRIKES_MAX: u32 = 3;
/// CUDA 12.0, driver 525: what reads the PTX that we ship.
const VERSION_MIN: i32 = 12_000;
/// The PTX is for compute capability 8.0.
const CAPABILITY_MIN: i32 = 8;
const NO_DEVICE: i32 = 100;
const PTX_TOO_NEW: i32 = 222;

/// What one process has opened, by library and device. Every lcore that asks for the same shares one context.
static OPENED: Mutex<Vec<(String, String, Weak<Accelerator>)>> = Mutex::new(Vec::new());

impl Accelerator {
    /// The GPU that `wanted` names, with the kernels of `ptx`; opened when nobody has it yet. May take a second: the driver
    /// translates the kernels.
    ///
    /// # Errors
    /// One line: what is missing.
    pub(super) fn shared(wanted: &Gpu, ptx: &str) -> Result<Arc<Self>, String> {
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        opened.retain(|(_, _, open)| open.strong_count() > 0);
        let known = opened
            .iter()
            .find(|(library, device, _)| {
                *library == wanted.driver_library && *device == wanted.device
            })
            .and_then(|(_, _, open)| open.upgrade());
        if let Some(known) = known {
            return Ok(known);
        }
        let fresh = Arc::new(Self::open(&wanted.driver_library, &wanted.device, ptx)?);
        opened.push((
            wanted.driver_library.clone(),
            wanted.device.clone(),
            Arc::downgrade(&fresh),
        ));
        Ok(fresh)
    }

    /// As [`Accelerator::shared`], in a context that nobody else has.
    ///
    /// # Errors
    /// As there.
    pub(super) fn apart(wanted: &Gpu, ptx: &str) -> Result<Arc<Self>, String> {
        Self::open(&wanted.driver_library, &wanted.device, ptx).map(Arc::new)
    }

    fn open(library: &str, device: &str, ptx: &str) -> Result<Self, String> {
        let driver = Driver::open(library)?;
        driver.init().map_err(|fault| match fault.code {
            NO_DEVICE => format!("no GPU is there: {fault}"),
            _ => fault.to_string(),
        })?;
        let version = driver.version().map_err(text)?;
        if version < VERSION_MIN {
            let (major, minor) = (version / 1_000, version % 1_000 / 10);
            return Err(format!(
                "the driver is too old: it knows CUDA {major}.{minor}, 12.0 is needed (driver 525 or newer)"
            ));
        }
        let device = choose(driver, device)?;
        let name = driver.name(device).map_err(text)?;
        let fact = |wanted| driver.attribute(device, wanted).map_err(text);
        let (major, minor) = (
            fact(attribute::CAPABILITY_MAJOR)?,
            fact(attribute::CAPABILITY_MINOR)?,
        );
        let capability = u32::try_from(major * 10 + minor).unwrap_or(0);
        if major < CAPABILITY_MIN {
            return Err(format!(
                "{name} has compute capability {major}.{minor}, {CAPABILITY_MIN}.0 is needed"
            ));
        }
        if fact(attribute::CAN_MAP_HOST_MEMORY)? == 0 {
            return Err(format!("{name} cannot reach host memory"));
        }
        let context = driver.context(device).map_err(text)?;
        let code = CString::new(ptx).map_err(|_| "the kernels hold a NUL byte".to_owned())?;
        let module = driver
            .load(&code)
            .map_err(|(fault, log)| refused("the kernels", "loaded", &fault, &log))?;
        Ok(Self {
            driver,
            context,
            device,
            module,
            capability,
            name,
            off: AtomicBool::new(false),
            strikes: AtomicU32::new(0),
            lent: OnceLock::new(),
        })
    }

    /// Registers the memory of the port's frames, once; None, and one line the first time: the GPU does not reach it. Its context
    /// must be the thread's.
    pub(super) fn lend(&self, memory: &dyn Fn() -> Option<Lasting>) -> Option<Arc<Lent>> {
        let lent = self.lent.get_or_init(|| match Lent::new(self.driver, &memory()?) {
            Ok(lent) => {
                let mib = lent.bytes() >> 20;
                crate::info!("gpu event=frames_registered mib={mib}");
                Some(Arc::new(lent))
            }
            Err(fault) => {
                crate::warn!(
                    "gpu event=frames_not_registered now=\"the payload of packet rules is copied\" reason=\"{fault}\""
                );
                None
            }
        });
        lent.clone()
    }

    /// A user's function with the kernel that calls it. May take a second.
    ///
    /// # Errors
    /// One line: what the driver or the GPU has against it.
    pub(super) fn link(&self, code: &UserCode) -> Result<Module, String> {
        let what = format!("ptx_file {}", code.file);
        if code.about.target > self.capability {
            let (name, has) = (&self.name, self.capability);
            return Err(format!(
                "{what} is for sm_{}, and {name} is sm_{has}",
                code.about.target
            ));
        }
        let text = |text: &str| CString::new(text).map_err(|_| format!("{what} holds a NUL byte"));
        let (caller, theirs, file) = (text(&code.caller())?, text(&code.text)?, text(&code.file)?);
        let parts = [
            Part {
                name: c"knet_user.ptx",
                text: &caller,
            },
            Part {
                name: &file,
                text: &theirs,
            },
        ];
        self.driver
            .link(&parts)
            .map_err(|(fault, log)| refused(&what, "linked", &fault, &log))
    }

    /// The entry point of a kernel for a mode.
    ///
    /// # Errors
    /// One line.
    pub(super) fn function(
        &self,
        module: Module,
        kernel: &str,
        mode: &str,
    ) -> Result<Function, String> {
        let name = format!("knet_{kernel}_{mode}");
        let entry = CString::new(name.as_str()).map_err(|error| error.to_string())?;
        self.driver
            .function(module, &entry)
            .map_err(|fault| format!("no kernel {name}: {fault}"))
    }

    /// Blocks of a kernel that stays of which a multiprocessor has room for at once.
    ///
    /// # Errors
    /// One line.
    pub(super) fn blocks_at_once(&self, module: Module, kernel: &str) -> Result<usize, String> {
        let function = self.function(module, kernel, "persistent")?;
        match self.driver.blocks_together(function, THREADS) {
            Ok(blocks) => Ok(usize::try_from(blocks).unwrap_or(0)),
            // Nobody says: one, or the kernel could not run at all.
            Err(fault) if fault.code == ABSENT => Ok(1),
            Err(fault) => Err(text(fault)),
        }
    }

    /// Device memory with `bytes` in it.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn upload(&self, bytes: &[u8]) -> Result<DevicePointer, Fault> {
        let place = self.driver.alloc(bytes.len().max(1))?;
        self.driver.upload(place, bytes)?;
        Ok(place)
    }

    /// Makes the context the calling thread's.
    pub(super) fn enter(&self) -> Result<(), Fault> {
        self.driver.enter(self.context)
    }

    /// Whether it may be used.
    pub(super) fn is_on(&self) -> bool {
        !self.off.load(Ordering::Relaxed)
    }

    /// A batch was late or failed; the third time is the last. Says whether it was.
    pub(super) fn strike(&self, why: &str) {
        let strikes = self.strikes.fetch_add(1, Ordering::Relaxed) + 1;
        if strikes >= STRIKES_MAX {
            return self.turn_off(why);
        }
        crate::warn!("gpu event=strike count={strikes} max={STRIKES_MAX} reason=\"{why}\"");
    }

    /// Never uses it again; the CPU does everything from now on. One line, once.
    pub(super) fn turn_off(&self, why: &str) {
        if !self.off.swap(true, Ordering::Relaxed) {
            crate::error!(
                "gpu event=off reason=\"{why}\" now=\"the CPU runs every kernel until the host starts anew\""
            );
        }
    }
}

/// Why the driver does not take code.
fn refused(what: &str, verb: &str, fault: &Fault, log: &str) -> String {
    let why = match fault.code {
        PTX_TOO_NEW => "too new for the driver".to_owned(),
        _ => format!("cannot be {verb}"),
    };
    format!("{what}: {why}: {fault} {log}")
        .trim_end()
        .to_owned()
}

fn text(fault: Fault) -> String {
    fault.to_string()
}

/// The GPU by its index, its PCI address or its UUID.
fn choose(driver: &Driver, wanted: &str) -> Result<Device, String> {
    let count = driver.count().map_err(text)?;
    if count == 0 {
        return Err("no GPU is there".to_owned());
    }
    let missing = |fault: Fault| format!("GPU {wanted} of {count}: {fault}");
    if let Ok(index) = wanted.parse() {
        return driver.device(index).map_err(missing);
    }
    if let Some(uuid) = uuid(wanted) {
        for index in 0..count {
            let device = driver.device(index).map_err(missing)?;
            if driver.uuid(device).map_err(missing)? == uuid {
                return Ok(device);
            }
        }
        return Err(format!("no GPU of {count} is {wanted}"));
    }
    let address = CString::new(wanted).map_err(|error| error.to_string())?;
    driver.device_at(&address).map_err(missing)
}

/// A UUID as nvidia-smi prints it, with or without `GPU-`.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text
        .strip_prefix("GPU-")
        .unwrap_or(text)
        .chars()
        .filter(|c| *c != '-')
        .collect();
    let number = (digits.len() == 32).then(|| u128::from_str_radix(&digits, 16).ok())??;
    Some(number.to_be_bytes())
}
