//! The number of a group of the system.

use std::io;
use std::path::Path;

use crate::errno::{Errno, Result};

/// The number of the group `name` in group(5); None when there is no such group. A group of the system stands there,
/// whatever directory knows the others.
///
/// # Errors
/// What reading the file says.
pub(super) fn number(name: &str) -> Result<Option<u32>> {
    match std::fs::read_to_string(Path::new("/etc/group")) {
        Ok(text) => Ok(number_in(&text, name)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

fn number_in(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then_some(())?;
        fields.nth(1)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_by_its_whole_name() {
        let text = "root:x:0:\nknetwork:x:7:\nknet:x:987:redis,nginx\nbroken\n";
        assert_eq!(number_in(text, "knet"), Some(987));
        assert_eq!(number_in(text, "net"), None);
        assert_eq!(number_in("knet:x\n", "knet"), None);
    }
}
