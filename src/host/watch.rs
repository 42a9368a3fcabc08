//! Looks after the kernel interface under a port: renamed, down, another MTU, or gone.

use core::time::Duration;

use crate::preflight::{Link, Net};
use crate::time::Instant;

/// What is new about the interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum News {
    /// It was deleted, or moved to another network namespace.
    Gone,
    /// It has another MTU.
    Mtu(usize),
    /// It has another name.
    Renamed(String),
    /// It was taken down or up.
    Up(bool),
}

/// The interface as it was seen last.
#[derive(Debug)]
pub(super) struct PortWatch {
    seen: Link,
    next: Instant,
}

impl PortWatch {
    /// Watches interface `name` from `now` on; None when there is none.
    pub(super) fn new(name: &str, now: Instant) -> Option<Self> {
        let seen = Net::ask_links().ok()?.link(name)?.clone();
        Some(Self {
            seen,
            next: now + PERIOD,
        })
    }

    /// When to look next.
    pub(super) const fn next(&self) -> Instant {
        self.next
    }

    /// Its name.
    pub(super) fn name(&self) -> &str {
        &self.seen.name
    }

    /// Looks, when it is time to.
    pub(super) fn look(&mut self, now: Instant) -> Vec<News> {
        if now < self.next {
            return Vec::new();
        }
        self.next = now + PERIOD;
        match Net::ask_links() {
            Ok(net) => self.compare(&net),
            Err(errno) => {
                crate::debug!("port={} event=not_watched errno={errno}", self.seen.name);
                Vec::new()
            }
        }
    }

    fn compare(&mut self, net: &Net) -> Vec<News> {
        let Some(link) = net.links.iter().find(|link| link.index == self.seen.index) else {
            return vec![News::Gone];
        };
        let mut news = Vec::new();
        if link.name != self.seen.name {
            news.push(News::Renamed(link.name.clone()));
        }
        if link.up != self.seen.up {
            news.push(News::Up(link.up));
        }
        if link.mtu != self.seen.mtu {
            news.push(News::Mtu(usize::try_from(link.mtu).unwrap_or(usize::MAX)));
        }
        self.seen = link.clone();
        news
    }
}

/// Between two looks: as often as people change interfaces, seldom enough for an idle host.
const PERIOD: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, mtu: u32, up: bool) -> Link {
        Link {
            index,
            name: name.to_owned(),
            up,
            loopback: false,
            mtu,
            mac: None,
        }
    }

    fn net(link: Link) -> Net {
        Net {
            links: vec![link],
            ..Net::default()
        }
    }

    #[test]
    fn every_change_is_told_once() {
        let mut watch = PortWatch {
            seen: link(7, "veth0", 1_500, true),
            next: Instant::ZERO,
        };
        assert_eq!(watch.compare(&net(link(7, "veth0", 1_500, true))), []);
        assert_eq!(
            watch.compare(&net(link(7, "other0", 1_000, false))),
            [
                News::Renamed("other0".to_owned()),
                News::Up(false),
                News::Mtu(1_000)
            ]
        );
        assert_eq!(watch.compare(&net(link(7, "other0", 1_000, false))), []);
        // One of the same name is another interface.
        assert_eq!(
            watch.compare(&net(link(8, "other0", 1_000, false))),
            [News::Gone]
        );
    }
}
