//! Hugepages, for each NUMA node and size.

use std::fs;
use std::path::{Path, PathBuf};

use super::super::machine::names;
use super::super::procfs;
use super::step::Step;

/// The pages of one size on one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pool {
    /// The NUMA node; None on a kernel without NUMA.
    pub node: Option<usize>,
    /// Bytes of a page.
    pub page: u64,
    /// Pages reserved.
    pub total: u64,
    /// Pages that nobody uses.
    pub free: u64,
    folder: PathBuf,
}

/// What is wanted of one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// So many pages in all.
    Total(u64),
    /// At least so many bytes free.
    Free(u64),
}

impl Pool {
    /// All pools below `root`.
    #[must_use]
    pub fn all(root: &Path) -> Vec<Self> {
        let nodes = Path::new("sys/devices/system/node");
        let mut numbers: Vec<usize> = names(&root.join(nodes))
            .iter()
            .filter_map(|name| name.strip_prefix("node")?.parse().ok())
            .collect();
        numbers.sort_unstable();
        let folders: Vec<(Option<usize>, PathBuf)> = if numbers.is_empty() {
            vec![(None, PathBuf::from("sys/kernel/mm/hugepages"))]
        } else {
            numbers
                .iter()
                .map(|number| (Some(*number), nodes.join(format!("node{number}/hugepages"))))
                .collect()
        };
        folders
            .into_iter()
            .flat_map(|(node, folder)| {
                let sizes = names(&root.join(&folder));
                sizes
                    .into_iter()
                    .filter_map(|size| Self::read(root, node, &folder.join(size)))
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    fn read(root: &Path, node: Option<usize>, folder: &Path) -> Option<Self> {
        let number = |name: &str| {
            let text = fs::read_to_string(root.join(folder).join(name)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        Some(Self {
            node,
            page: procfs::hugepage_bytes(folder.file_name()?.to_str()?)?,
            total: number("nr_hugepages")?,
            free: number("free_hugepages")?,
            folder: folder.to_path_buf(),
        })
    }

    /// The same pool, read again.
    #[must_use]
    pub fn again(&self, root: &Path) -> Option<Self> {
        Self::read(root, self.node, &self.folder)
    }

    /// The pages that the pool must have for `wanted`.
    #[must_use]
    pub fn wanted(&self, wanted: Pages) -> u64 {
        match wanted {
            Pages::Total(pages) => pages,
            Pages::Free(bytes) => {
                let lacking = bytes.div_ceil(self.page).saturating_sub(self.free);
                self.total.saturating_add(lacking)
            }
        }
    }

    /// The step that makes it `pages`; None when it has as many.
    #[must_use]
    pub fn step(&self, pages: u64) -> Option<Step> {
        (pages != self.total)
            .then(|| Step::write(self.folder.join("nr_hugepages"), pages.to_string()))
    }
}
