//! Which build of the library has made a parcel, and where it was loaded from: told when another one cannot read it.

use core::fmt::{self, Write};

use crate::BUILD_VERSION;
use crate::attach::place;

/// Its size in the parcel.
pub(super) const BYTES: usize = 320;
/// A text of ours begins with it; what stands there in a parcel of an older build does not.
const BEGIN: &str = "build ";

/// A build and its path, on the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Maker {
    bytes: [u8; BYTES],
    used: usize,
}

impl Default for Maker {
    fn default() -> Self {
        Self {
            bytes: [0; BYTES],
            used: 0,
        }
    }
}

impl Maker {
    /// The code that runs.
    #[must_use]
    pub fn present() -> Self {
        let mut maker = Self::default();
        // A path that is too long is left out.
        let _ = write!(maker, "{BEGIN}{BUILD_VERSION}");
        if let Ok(frame) = place::frame() {
            let _ = write!(maker, " at {frame}");
        }
        maker
    }

    /// Whatever has left these bytes.
    #[must_use]
    pub fn of(bytes: &[u8; BYTES]) -> Self {
        let used = bytes.iter().position(|byte| *byte == 0).unwrap_or(BYTES);
        Self {
            bytes: *bytes,
            used,
        }
    }

    /// As they stand in the parcel.
    #[must_use]
    pub const fn bytes(&self) -> [u8; BYTES] {
        self.bytes
    }
}

impl Write for Maker {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.used + text.len();
        let place = self.bytes.get_mut(self.used..end).ok_or(fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.used = end;
        Ok(())
    }
}

impl fmt::Display for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.bytes.get(..self.used).unwrap_or(&[]);
        match core::str::from_utf8(text) {
            Ok(text) if text.starts_with(BEGIN) => f.write_str(text),
            _ => f.write_str("an older build"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maker_is_read_as_it_was_written() {
        let present = Maker::present();
        let read = Maker::of(&present.bytes());
        assert_eq!(read, present);
        let text = read.to_string();
        assert!(
            text.starts_with(&format!("build {BUILD_VERSION} at /")),
            "{text}"
        );
    }

    #[test]
    fn what_an_older_build_has_there_is_no_text() {
        assert_eq!(Maker::default().to_string(), "an older build");
        assert_eq!(Maker::of(&[0xff; BYTES]).to_string(), "an older build");
    }

    #[test]
    fn a_path_that_does_not_fit_is_left_out_in_whole_parts() {
        let mut maker = Maker::default();
        write!(maker, "{BEGIN}1").unwrap();
        assert!(write!(maker, "{}", "x".repeat(BYTES)).is_err());
        assert_eq!(maker.to_string(), "build 1");
    }
}
