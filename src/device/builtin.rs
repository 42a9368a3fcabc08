//! The devices that need no DPDK, opened by the name that `interface.vdevs` gives.

use super::fault::FaultConfig;
use super::unix::UnixDevice;
use super::{Device, DeviceError};

/// The smallest MTU of IPv4 (RFC 791 section 3.2).
const MTU_MIN: usize = 68;

/// What one IP packet can hold (RFC 791 section 3.1).
const MTU_MAX: usize = 65_535;

/// Whether `name` is one of ours; every other name goes to EAL.
#[must_use]
pub fn is_builtin(name: &str) -> bool {
    name.starts_with("knet_")
}

/// Opens the device `name` with `args` in order: `knet_unix` with `path` and fault keys.
///
/// # Errors
/// A line that says which names exist, or names the key that is wrong.
pub fn open_builtin(
    name: &str,
    args: &[(String, String)],
    mac: [u8; 6],
    mtu: usize,
) -> Result<Box<dyn Device>, DeviceError> {
    match name {
        "knet_unix" => open_unix(args, mac, mtu),
        "knet_pair" => Err(DeviceError {
            message: "knet_pair joins two ends inside one test and has no peer here; use \
                      knet_unix,path=P between two hosts"
                .into(),
        }),
        _ => Err(DeviceError {
            message: format!(
                "no built-in device {name}; there are knet_unix and, in tests, knet_pair"
            ),
        }),
    }
}

fn open_unix(
    args: &[(String, String)],
    mac: [u8; 6],
    mtu: usize,
) -> Result<Box<dyn Device>, DeviceError> {
    let fault = |what: String| DeviceError {
        message: format!("knet_unix: {what}"),
    };
    if !(MTU_MIN..=MTU_MAX).contains(&mtu) {
        return Err(fault(format!(
            "mtu {mtu} is not from {MTU_MIN} to {MTU_MAX}"
        )));
    }
    let mut path = None;
    let mut faults = FaultConfig::none();
    for (key, value) in args {
        if key == "path" {
            path = Some(value);
        } else if !faults
            .set(key, value)
            .map_err(|wrong| fault(wrong.message))?
        {
            return Err(fault(format!(
                "unknown key {key}; known keys: path, {}",
                FaultConfig::KEYS
            )));
        }
    }
    let path = path.ok_or_else(|| fault("path is missing; give knet_unix,path=P".into()))?;
    Ok(Box::new(UnixDevice::open(path, faults, mac, mtu)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn refusal(name: &str, args: &[(&str, &str)], mtu: usize) -> String {
        let args: Vec<_> = args
            .iter()
            .map(|(key, value)| ((*key).into(), (*value).into()))
            .collect();
        match open_builtin(name, &args, MAC, mtu) {
            Ok(_) => panic!("{name} {args:?} was opened"),
            Err(fault) => fault.message,
        }
    }

    #[test]
    fn refusals_say_what_exists_and_which_key_is_wrong() {
        assert!(refusal("knet_tap", &[], 1500).contains("knet_unix"));
        assert!(refusal("knet_pair", &[], 1500).contains("knet_unix,path=P"));
        assert!(refusal("knet_unix", &[], 1500).contains("path is missing"));
        assert!(refusal("knet_unix", &[("path", "p")], 1500).contains("absolute"));
        assert!(refusal("knet_unix", &[("pth", "/p")], 1500).contains("unknown key pth"));
        assert!(refusal("knet_unix", &[("path", "/p"), ("loss", "2")], 1500).contains("loss: 2"));
        assert!(refusal("knet_unix", &[("path", "/p")], 67).contains("mtu 67"));
        let long = format!("/{}", "x".repeat(120));
        assert!(refusal("knet_unix", &[("path", &long)], 1500).contains("108 bytes"));
        assert!(
            refusal("knet_unix", &[("path", "/no-such-folder/s")], 1500)
                .contains("/no-such-folder/s")
        );
    }
}
