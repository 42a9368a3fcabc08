//! The steps that bind a port to a driver of user space and give it back.

use core::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::list::Port;
use super::step::Step;
use crate::config::Bdf;

/// How a port is to be bound.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bind {
    /// The driver of user space.
    pub driver: String,
    /// Also when the port carries the default route.
    pub force: bool,
    /// Without an IOMMU, which lets the port write to all memory.
    pub noiommu: bool,
}

/// Why nothing is done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal(pub String);

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

fn refuse<T>(text: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(text.into()))
}

/// The steps that give `port` to DPDK; none when it has it already.
///
/// # Errors
/// Why it must not, or cannot, be done.
pub fn bind(root: &Path, port: &Port, how: &Bind) -> Result<Vec<Step>, Refusal> {
    let bdf = port.bdf;
    if port.driver() == how.driver {
        return Ok(Vec::new());
    }
    if port.is_shared() {
        return refuse(format!(
            "{bdf} is shared by DPDK and its kernel driver {}: it is used as it is",
            port.driver()
        ));
    }
    if let Some(interface) = port.carries_default_route()
        && !how.force
    {
        return refuse(format!(
            "{bdf} is {}, which carries the default route: this machine would be cut off (--force does it all the same)",
            interface.name
        ));
    }
    let vfio = how.driver == "vfio-pci";
    if vfio && !port.pci.iommu && !how.noiommu {
        return refuse(format!(
            "{bdf} is in no IOMMU group: boot with intel_iommu=on (or switch AMD's on), or, where there is none, bind with \
             --noiommu, which lets the port write to all memory"
        ));
    }
    if vfio && !port.group_mates.is_empty() {
        return refuse(format!(
            "{bdf} shares its IOMMU group with {}: vfio gives a group away as a whole only; bind those too, or put the port \
             into another slot",
            port.group_mates.join(", ")
        ));
    }
    let mut steps: Vec<Step> = port
        .interfaces
        .iter()
        .map(|interface| Step::run(&["ip", "link", "set", "dev", &interface.name, "down"]))
        .collect();
    if vfio && !port.pci.iommu {
        steps.push(Step::run(&[
            "modprobe",
            "vfio",
            "enable_unsafe_noiommu_mode=1",
        ]));
        // Loaded already, it takes the word here.
        steps.push(Step::write(
            "sys/module/vfio/parameters/enable_unsafe_noiommu_mode",
            "1",
        ));
    }
    if !driver_folder(root, &how.driver).is_dir() {
        steps.push(Step::run(&["modprobe", &how.driver]));
    }
    if port.pci.driver.is_some() {
        steps.push(leave(bdf));
    }
    steps.push(Step::write(
        device(bdf).join("driver_override"),
        &how.driver,
    ));
    steps.push(Step::write("sys/bus/pci/drivers_probe", bdf.to_string()));
    Ok(steps)
}

/// The steps that give `port` back to the kernel, to `driver` or to the one that knows it.
///
/// # Errors
/// Why it cannot be done now.
pub fn unbind(root: &Path, port: &Port, driver: Option<&str>) -> Result<Vec<Step>, Refusal> {
    let bdf = port.bdf;
    let is_users = matches!(port.driver(), "vfio-pci" | "igb_uio" | "uio_pci_generic");
    let is_back = match driver {
        Some(driver) => port.driver() == driver,
        None => !is_users && port.pci.driver.is_some(),
    };
    if is_back {
        return Ok(Vec::new());
    }
    if let Some((process, name)) = user(root, bdf) {
        return refuse(format!(
            "{bdf} is in use by process {process} ({name}): end it first, the kernel would wait for it"
        ));
    }
    let mut steps = Vec::new();
    match driver {
        Some(driver) if !driver_folder(root, driver).is_dir() => {
            steps.push(Step::run(&["modprobe", driver]));
        }
        Some(_) => {}
        None => {
            let alias = fs::read_to_string(root.join(device(bdf)).join("modalias"));
            if let Ok(alias) = alias {
                steps.push(Step::run(&["modprobe", alias.trim()]));
            }
        }
    }
    if port.pci.driver.is_some() {
        steps.push(leave(bdf));
    }
    steps.push(Step::write(
        device(bdf).join("driver_override"),
        driver.unwrap_or_default(),
    ));
    steps.push(Step::write("sys/bus/pci/drivers_probe", bdf.to_string()));
    Ok(steps)
}

fn device(bdf: Bdf) -> PathBuf {
    Path::new("sys/bus/pci/devices").join(bdf.to_string())
}

fn driver_folder(root: &Path, driver: &str) -> PathBuf {
    root.join("sys/bus/pci/drivers").join(driver)
}

fn leave(bdf: Bdf) -> Step {
    Step::write(device(bdf).join("driver/unbind"), bdf.to_string())
}

/// A process that has the vfio group of the port open.
fn user(root: &Path, bdf: Bdf) -> Option<(u32, String)> {
    let group = fs::read_link(root.join(device(bdf)).join("iommu_group")).ok()?;
    let group = group.file_name()?.to_str()?.to_owned();
    let files = [
        format!("/dev/vfio/{group}"),
        format!("/dev/vfio/noiommu-{group}"),
    ];
    let processes = fs::read_dir(root.join("proc")).ok()?;
    processes.flatten().find_map(|process| {
        let number: u32 = process.file_name().to_str()?.parse().ok()?;
        let has = fs::read_dir(process.path().join("fd"))
            .ok()?
            .flatten()
            .filter_map(|fd| fs::read_link(fd.path()).ok())
            .any(|file| {
                files
                    .iter()
                    .any(|name| name.as_bytes() == file.as_os_str().as_bytes())
            });
        let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        has.then(|| (number, name.trim().to_owned()))
    })
}
