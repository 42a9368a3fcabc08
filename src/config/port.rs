//! What the port is: a PCI function, a kernel interface, or a virtual device.

use core::fmt;

/// A PCI address, `dddd:bb:dd.f`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Bdf {
    /// Domain.
    pub domain: u16,
    /// Bus.
    pub bus: u8,
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

impl Bdf {
    /// Reads exactly `dddd:bb:dd.f` (hexadecimal digits).
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (domain, rest) = text.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (device, function) = rest.split_once('.')?;
        let hex = |text: &str, digits: usize| {
            let good = text.len() == digits && text.chars().all(|c| c.is_ascii_hexdigit());
            good.then(|| u16::from_str_radix(text, 16).ok()).flatten()
        };
        let bdf = Self {
            domain: hex(domain, 4)?,
            bus: u8::try_from(hex(bus, 2)?).ok()?,
            device: u8::try_from(hex(device, 2)?).ok()?,
            function: u8::try_from(hex(function, 1)?).ok()?,
        };
        (bdf.device < 32 && bdf.function < 8).then_some(bdf)
    }
}

impl fmt::Display for Bdf {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{:04x}:{:02x}:{:02x}.{:x}",
            self.domain, self.bus, self.device, self.function
        )
    }
}

/// A virtual device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Vdev {
    /// Our in-memory pair, `knet_pair`.
    KnetPair(VdevArgs),
    /// Our frames over an AF_UNIX seqpacket socket, `knet_unix,path=P`; `path` is among the arguments.
    KnetUnix(VdevArgs),
    /// Anything else: the text goes to EAL as `--vdev=TEXT`.
    Eal(String),
}

/// The arguments of one of our virtual devices, in order, each key once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VdevArgs(pub Vec<(String, String)>);

impl VdevArgs {
    /// The value of `key`; the empty text for a key without `=`.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    }
}

impl Vdev {
    /// Reads `name[,key=value]...`.
    ///
    /// # Errors
    /// One line, what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err("white space in a device".to_owned());
        }
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or("");
        if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || name.contains('=') {
            return Err("a device begins with its name".to_owned());
        }
        let mut args: Vec<(String, String)> = Vec::new();
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            if key.is_empty() {
                return Err("an argument has no name".to_owned());
            }
            if args.iter().any(|(known, _)| known == key) && name.starts_with("knet_") {
                return Err(format!("argument {key} is written twice"));
            }
            args.push((key.to_owned(), value.to_owned()));
        }
        match name {
            "knet_pair" => Ok(Self::KnetPair(VdevArgs(args))),
            "knet_unix" => {
                let args = VdevArgs(args);
                match args.value("path") {
                    None | Some("") => Err("knet_unix needs path=P, a socket's path".to_owned()),
                    // sun_path holds 108 bytes with the closing NUL (unix(7)).
                    Some(path) if path.len() > 107 => {
                        Err("the path of knet_unix is longer than 107 bytes".to_owned())
                    }
                    Some(_) => Ok(Self::KnetUnix(args)),
                }
            }
            name if name.starts_with("knet_") => Err(format!(
                "{name} is none of ours, which are knet_pair and knet_unix"
            )),
            _ => Ok(Self::Eal(text.to_owned())),
        }
    }
}

/// The one port of a config.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortChoice {
    /// `interface.bdf_nums`: a PCI function for DPDK.
    Bdf(Bdf),
    /// `interface.netdev`: a kernel interface.
    Netdev(String),
    /// `interface.vdevs`: a virtual device.
    Vdev(Vdev),
}

impl PortChoice {
    /// The kernel interface under the port, however it is named.
    #[must_use]
    pub fn interface(&self) -> Option<&str> {
        match self {
            Self::Netdev(name) => Some(name),
            Self::Vdev(Vdev::Eal(text)) => text
                .split(',')
                .find_map(|part| part.strip_prefix("iface="))
                .filter(|name| is_interface_name(name)),
            Self::Bdf(_) | Self::Vdev(Vdev::KnetPair(_) | Vdev::KnetUnix(_)) => None,
        }
    }
}

impl fmt::Display for PortChoice {
    /// The port as the config names it, for a line to people.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, args) = match self {
            Self::Bdf(bdf) => return write!(out, "{bdf}"),
            Self::Netdev(name) => return out.write_str(name),
            Self::Vdev(Vdev::Eal(text)) => return out.write_str(text),
            Self::Vdev(Vdev::KnetPair(args)) => ("knet_pair", args),
            Self::Vdev(Vdev::KnetUnix(args)) => ("knet_unix", args),
        };
        out.write_str(name)?;
        for (key, value) in &args.0 {
            write!(out, ",{key}={value}")?;
        }
        Ok(())
    }
}

/// Whether the kernel could have an interface of this name (IFNAMSIZ is 16 with the closing NUL).
pub(super) fn is_interface_name(name: &str) -> bool {
    let bad = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    (1..16).contains(&name.len()) && name != "." && name != ".." && !name.contains(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses() {
        let bdf = Bdf::parse("0000:3D:1f.7").expect("good");
        assert_eq!(bdf.to_string(), "0000:3d:1f.7");
        for bad in [
            "",
            "04:00.0",
            "0000:04:00",
            "0000:04:00.8",
            "0000:04:20.0",
            "000:04:00.0",
            "0000:+4:00.0",
            "0000:04:00.0 ",
        ] {
            assert_eq!(Bdf::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn devices() {
        let unix = Vdev::parse("knet_unix,path=/tmp/x,loss=0.01,seed=7").expect("good");
        let Vdev::KnetUnix(args) = &unix else {
            panic!("{unix:?}")
        };
        assert_eq!(args.value("loss"), Some("0.01"));
        assert_eq!(args.value("dup"), None);
        assert_eq!(
            PortChoice::Vdev(unix).to_string(),
            "knet_unix,path=/tmp/x,loss=0.01,seed=7"
        );
        assert_eq!(
            Vdev::parse("net_af_packet0,iface=v0"),
            Ok(Vdev::Eal("net_af_packet0,iface=v0".to_owned()))
        );
        assert_eq!(
            Vdev::parse("knet_pair"),
            Ok(Vdev::KnetPair(VdevArgs::default()))
        );
        for bad in [
            "",
            "knet_unix",
            "knet_unix,path=",
            "knet_tap",
            "=x",
            "knet_pair,seed=1,seed=2",
            "a b",
            "net_tap0,,",
        ] {
            assert!(Vdev::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_interface_is_found_under_its_device() {
        let under = |text: &str| {
            PortChoice::Vdev(Vdev::parse(text).expect("good"))
                .interface()
                .map(str::to_owned)
        };
        assert_eq!(
            PortChoice::Netdev("veth0".to_owned()).interface(),
            Some("veth0")
        );
        assert_eq!(
            under("net_af_xdp0,iface=veth0,busy_budget=0").as_deref(),
            Some("veth0")
        );
        assert_eq!(under("net_vhost0,iface=/run/vhost.sock"), None);
        assert_eq!(under("net_null0"), None);
        assert_eq!(under("knet_unix,path=/x"), None);
    }

    #[test]
    fn interface_names() {
        assert!(is_interface_name("eth0.100"));
        for bad in ["", "a/b", "..", "0123456789abcdef", "a b"] {
            assert!(!is_interface_name(bad), "{bad}");
        }
    }
}
