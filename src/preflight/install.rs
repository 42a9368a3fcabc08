//! Where the parts of knet lie (design D14).

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The library that programs preload.
pub const FRAME: &str = "libknet_frame.so";
/// The host.
pub const HOST: &str = "knetd";
/// The DPDK plug-in.
pub const PLUGIN: &str = "libknet_dpdk.so";

/// Finds the parts: first beside `beside` (the folder of the tool that asks), then where packages put them.
#[derive(Clone, Debug)]
pub struct Places {
    /// The folder of the tool that asks; absolute.
    pub beside: PathBuf,
    /// `KNET_HOST`
    pub host: Option<OsString>,
    /// `LD_LIBRARY_PATH`
    pub library_path: Option<OsString>,
    /// `/`, or the root of a test's tree.
    pub root: PathBuf,
}

impl Places {
    /// The places of this process.
    ///
    /// # Errors
    /// When the process cannot tell where its own binary lies.
    pub fn of_this_process() -> std::io::Result<Self> {
        let binary = std::env::current_exe()?;
        Ok(Self {
            beside: binary.parent().map(Path::to_path_buf).unwrap_or_default(),
            host: std::env::var_os("KNET_HOST"),
            library_path: std::env::var_os("LD_LIBRARY_PATH"),
            root: PathBuf::from("/"),
        })
    }

    /// The library to preload, by absolute path.
    #[must_use]
    pub fn frame(&self) -> Option<PathBuf> {
        let multiarch = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        let folders = [
            self.beside.clone(),
            self.root.join("usr/lib64"),
            self.root.join(multiarch),
        ];
        folders
            .into_iter()
            .map(|folder| folder.join(FRAME))
            .find(|path| path.is_file())
    }

    /// The host: `KNET_HOST`, else beside the library, else /usr/bin.
    #[must_use]
    pub fn host(&self) -> Option<PathBuf> {
        if let Some(host) = self.host.as_deref().filter(|host| !host.is_empty()) {
            return Some(PathBuf::from(host)).filter(|path| path.is_file());
        }
        let library = self
            .frame()
            .and_then(|path| path.parent().map(Path::to_path_buf));
        let folders = [
            library.unwrap_or_else(|| self.beside.clone()),
            self.root.join("usr/bin"),
        ];
        folders
            .into_iter()
            .map(|folder| folder.join(HOST))
            .find(|path| path.is_file())
    }

    /// The DPDK plug-in: beside the host, then the library path.
    #[must_use]
    pub fn plugin(&self) -> Option<PathBuf> {
        let host = self
            .host()
            .and_then(|path| path.parent().map(Path::to_path_buf));
        let path = self.library_path.clone().unwrap_or_default();
        let multiarch = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        let system = ["usr/lib64", multiarch.as_str(), "usr/lib", "usr/local/lib"]
            .map(|folder| self.root.join(folder));
        let named: Vec<PathBuf> = std::env::split_paths(&path)
            .filter(|folder| folder.is_absolute())
            .collect();
        host.into_iter()
            .chain(named)
            .chain(system)
            .map(|folder| folder.join(PLUGIN))
            .find(|path| path.is_file())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn parts_are_found_in_their_order() {
        let root = std::env::temp_dir().join(format!("knet-places-{}", std::process::id()));
        let build = root.join("build");
        for folder in ["build", "usr/bin", "usr/lib64", "usr/lib"] {
            fs::create_dir_all(root.join(folder)).expect("folder");
        }
        let mut places = Places {
            beside: build.clone(),
            host: None,
            library_path: None,
            root: root.clone(),
        };
        assert_eq!(
            (places.frame(), places.host(), places.plugin()),
            (None, None, None)
        );
        let touch = |path: &Path| fs::write(path, "").expect("file");
        touch(&root.join("usr/lib64").join(FRAME));
        touch(&root.join("usr/bin").join(HOST));
        touch(&root.join("usr/lib").join(PLUGIN));
        assert_eq!(places.frame(), Some(root.join("usr/lib64").join(FRAME)));
        assert_eq!(places.host(), Some(root.join("usr/bin").join(HOST)));
        assert_eq!(places.plugin(), Some(root.join("usr/lib").join(PLUGIN)));
        for part in [FRAME, HOST, PLUGIN] {
            touch(&build.join(part));
        }
        assert_eq!(places.frame(), Some(build.join(FRAME)));
        assert_eq!(places.host(), Some(build.join(HOST)));
        assert_eq!(places.plugin(), Some(build.join(PLUGIN)));
        places.host = Some(OsString::from("/nonexistent/knetd"));
        assert_eq!(places.host(), None);
        fs::remove_dir_all(&root).expect("clean");
    }
}
