//! Where a file is read from.

use super::*;

#[test]
fn paths_that_are_no_file() {
    let folder = std::env::temp_dir();
    assert!(
        load_file(&folder)
            .unwrap_err()
            .to_string()
            .contains("is a directory")
    );
    assert!(
        load_file(&folder.join("knet-no-such-file"))
            .unwrap_err()
            .to_string()
            .contains("no such file")
    );
    assert!(
        load_file(Path::new("/dev/null"))
            .unwrap_err()
            .to_string()
            .contains("not a regular file")
    );
}

#[test]
fn a_descriptor_is_read_from_its_beginning() {
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsFd;
    let path = std::env::temp_dir().join(format!("knet-config-{}", std::process::id()));
    let mut file = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .expect("file");
    std::fs::remove_file(&path).expect("unlink");
    file.write_all(SMALLEST.as_bytes()).expect("write");
    file.rewind().expect("rewind");
    file.read_exact(&mut [0; 10]).expect("read");
    assert_eq!(
        read_descriptor("f", file.as_fd()).expect("regular"),
        SMALLEST.as_bytes()
    );
    assert_eq!(file.stream_position().expect("position"), 10);
}
