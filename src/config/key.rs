//! What a key is: the table that the reader, the schema, the reference page and the checker share.

/// Whose key it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// In every K-NET file, with K-NET's meaning and range.
    Knet,
    /// Added by us.
    Ours,
}

/// What setting the key does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// It is obeyed.
    Honoured,
    /// It is accepted for K-NET's sake and can have no effect: why.
    NoMeaning(&'static str),
    /// It is accepted and not served by this version: what happens instead.
    NotServed(&'static str),
}

/// What a value may be.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A whole number; `1.0` and `1e0` are 1, as in K-NET.
    Whole {
        /// Smallest.
        min: i64,
        /// Largest.
        max: i64,
    },
    /// `true` or `false`.
    Switch,
    /// One of these words, in any letter case.
    Choice(&'static [&'static str]),
    /// Text of a form.
    Text(Form),
    /// A list of texts of a form.
    TextList(Form),
    /// A list of whole numbers.
    WholeList {
        /// Smallest.
        min: i64,
        /// Largest.
        max: i64,
    },
    /// A list of objects with the keys of this section.
    Objects(&'static Section),
}

/// The form of a text: for people, and as a regular expression for the schema.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    /// In words.
    pub words: &'static str,
    /// ECMA 262, anchored; necessary, not always sufficient.
    pub pattern: &'static str,
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Exact spelling.
    pub name: &'static str,
    /// What its value may be.
    pub kind: Kind,
    /// The default as JSON text.
    pub default: &'static str,
    /// Whose key it is.
    pub origin: Origin,
    /// What setting it does.
    pub effect: Effect,
    /// One sentence: meaning, unit, constraint.
    pub about: &'static str,
}

impl Key {
    /// A key of K-NET's.
    #[must_use]
    pub const fn knet(
        name: &'static str,
        kind: Kind,
        default: &'static str,
        about: &'static str,
    ) -> Self {
        Self {
            name,
            kind,
            default,
            origin: Origin::Knet,
            effect: Effect::Honoured,
            about,
        }
    }

    /// A key of ours.
    #[must_use]
    pub const fn ours(
        name: &'static str,
        kind: Kind,
        default: &'static str,
        about: &'static str,
    ) -> Self {
        Self {
            name,
            kind,
            default,
            origin: Origin::Ours,
            effect: Effect::Honoured,
            about,
        }
    }

    /// The same key, without a meaning here.
    #[must_use]
    pub const fn without_meaning(mut self, why: &'static str) -> Self {
        self.effect = Effect::NoMeaning(why);
        self
    }

    /// The same key, not served by this version.
    #[must_use]
    pub const fn not_served(mut self, instead: &'static str) -> Self {
        self.effect = Effect::NotServed(instead);
        self
    }
}

/// One object of the file.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// Its path, for example `common.accelerate`.
    pub path: &'static str,
    /// One sentence.
    pub about: &'static str,
    /// Its keys, in the order in which they are shown.
    pub keys: &'static [Key],
}

impl Section {
    /// The section that holds this one, or None at the top.
    #[must_use]
    pub fn parent(&self) -> Option<&'static str> {
        self.path.rsplit_once('.').map(|(parent, _)| parent)
    }

    /// The last part of the path.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.path
            .rsplit_once('.')
            .map_or(self.path, |(_, name)| name)
    }
}

/// Any text.
pub(super) const ANY: Form = Form {
    words: "text",
    pattern: "^.*$",
};
/// A PCI address.
pub(super) const BDF: Form = Form {
    words: "PCI address dddd:bb:dd.f",
    pattern: "^[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\\.[0-7]$",
};
/// A MAC address, or empty.
pub(super) const MAC: Form = Form {
    words: "MAC address xx:xx:xx:xx:xx:xx, or empty",
    pattern: "^(([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2})?$",
};
/// An IPv4 address, or empty.
pub(super) const IPV4: Form = Form {
    words: "IPv4 address a.b.c.d, or empty",
    pattern: "^(([0-9]{1,3}\\.){3}[0-9]{1,3})?$",
};
/// An IPv4 address.
pub(super) const IPV4_SET: Form = Form {
    words: "IPv4 address a.b.c.d",
    pattern: "^([0-9]{1,3}\\.){3}[0-9]{1,3}$",
};
/// An IPv4 address with its prefix length.
pub(super) const IPV4_PREFIX: Form = Form {
    words: "IPv4 address with prefix length a.b.c.d/len",
    pattern: "^([0-9]{1,3}\\.){3}[0-9]{1,3}/[0-9]{1,2}$",
};
/// An IPv6 address with its prefix length.
pub(super) const IPV6_PREFIX: Form = Form {
    words: "IPv6 address with prefix length addr/len",
    pattern: "^[0-9a-fA-F:.]+/[0-9]{1,3}$",
};
/// A static route.
pub(super) const ROUTE: Form = Form {
    words: "route \"net/len via gateway\"",
    pattern: "^([0-9]{1,3}\\.){3}[0-9]{1,3}/[0-9]{1,2} +via +([0-9]{1,3}\\.){3}[0-9]{1,3}$",
};
/// A kernel interface name, or empty.
pub(super) const NETDEV: Form = Form {
    words: "interface name, or empty",
    pattern: "^[^/\\s]{0,15}$",
};
/// Where metrics are served, or empty.
pub(super) const METRICS: Form = Form {
    words: "\"unix:/absolute/path\" or \"127.x.y.z:port\", or empty",
    pattern: "^(unix:/.+|127(\\.[0-9]{1,3}){3}:[0-9]{1,5})?$",
};
/// A virtual device.
pub(super) const VDEV: Form = Form {
    words: "device \"name[,key=value]...\"",
    pattern: "^[A-Za-z][A-Za-z0-9_]*(,[^,=\\s]+(=[^,]*)?)*$",
};
/// CPUs, or empty.
pub(super) const CPUS: Form = Form {
    words: "CPU list such as \"1,4-7\", or empty",
    pattern: "^([0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)?$",
};
/// EAL's socket memory, or empty.
pub(super) const SOCKET_MEM: Form = Form {
    words: "\"--socket-mem=MB[,MB]...\", or empty",
    pattern: "^(--socket-mem=[0-9]+(,[0-9]+)*)?$",
};
/// EAL's limit of socket memory, or empty.
pub(super) const SOCKET_LIMIT: Form = Form {
    words: "\"--socket-limit=MB[,MB]...\", or empty",
    pattern: "^(--socket-limit=[0-9]+(,[0-9]+)*)?$",
};
/// A PMD, or empty.
pub(super) const DRIVER: Form = Form {
    words: "\"-d\" and a library name without '/', or empty",
    pattern: "^(-d[A-Za-z0-9_.+-]+\\.so(\\.[0-9]+)*)?$",
};
/// A hugetlbfs folder, or empty.
pub(super) const HUGE_DIR: Form = Form {
    words: "\"--huge-dir=/folder\" (letters, digits, '_', '-', '/'), or empty",
    pattern: "^(--huge-dir=/[A-Za-z0-9_/-]*)?$",
};
/// EAL's base address, or empty.
pub(super) const BASE_VIRTADDR: Form = Form {
    words: "\"--base-virtaddr=0xHEX\", or empty",
    pattern: "^(--base-virtaddr=0x[0-9a-fA-F]{1,16})?$",
};
/// A number of 64 bits as text.
pub(super) const U64: Form = Form {
    words: "number 0 to 18446744073709551615 in quotes",
    pattern: "^[0-9]{1,20}$",
};
