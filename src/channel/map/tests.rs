use rustix::fd::AsFd;

use super::*;
use crate::channel::byte_ring::Span;
use crate::channel::layout::Layout;
use crate::channel::sync::Ordering;

#[test]
fn a_process_cell_is_among_the_used_ones_when_it_is_taken() {
    use crate::channel::cell::process;

    let (control, _) = Control::create(Layout::for_flows(1, 4_096, 4_096)).unwrap();
    assert_eq!(control.processes(), 0..0);
    for index in 0..3 {
        assert_eq!(control.take_process(process::FORKING), Some(index));
        assert_eq!(control.processes(), 0..index + 1);
    }
    let free = control.process(1).unwrap();
    free.state.store(process::FREE, Ordering::Release);
    assert_eq!(control.take_process(process::LIVE), Some(1));
    assert_eq!(control.processes(), 0..3);
    // A program that writes nonsense there harms nobody else.
    control
        .header()
        .processes
        .store(u32::MAX, Ordering::Relaxed);
    assert_eq!(control.processes().count(), 256);
}

#[test]
fn both_sides_see_the_same_cells_and_rings() {
    let layout = Layout::for_flows(1, 4_096, 4_096);
    let (host, fd) = Control::create(layout).unwrap();
    let program = Control::attach(fd.as_fd()).unwrap();
    assert_eq!(program.layout(), layout);
    host.object(7)
        .unwrap()
        .host
        .rx_tail
        .store(42, Ordering::Release);
    assert_eq!(
        program
            .object(7)
            .unwrap()
            .host
            .rx_tail
            .load(Ordering::Acquire),
        42
    );
    assert!(program.object(layout.objects).is_none());
    program.doorbells(0).unwrap().set(9);
    assert!(host.doorbells(0).unwrap().has(9));

    let range = Range::new(4_094, 4, 4_096);
    program.tx_copy_in(3, range, b"abcd");
    let mut out = [0; 2];
    assert!(host.tx_copy_out(3, range.first, &mut out));
    assert_eq!(&out, b"ab");
    assert!(host.tx_copy_out(3, range.second, &mut out));
    assert_eq!(&out, b"cd");
    assert!(!host.tx_copy_out(
        3,
        Span {
            offset: 4_095,
            len: 2
        },
        &mut out
    ));
}

#[test]
fn the_program_reads_what_the_host_lends_to_the_stack() {
    let layout = Layout::for_flows(1, 4_096, 4_096);
    let (host, fd) = Receive::create(layout).unwrap();
    let program = Receive::attach(fd.as_fd(), layout).unwrap();
    // SAFETY: the only lender in this test, dropped before the mapping.
    let ring = unsafe { host.lend(5) }.unwrap();
    ring[4_095] = b'x';
    ring[0] = b'y';
    let mut out = [0; 2];
    assert!(program.copy_out(5, Range::new(4_095, 2, 4_096), &mut out));
    assert_eq!(&out, b"xy");
    back(fd.as_fd(), layout.rx_ring_at(5), 4_096).unwrap();
    unback(fd.as_fd(), layout.rx_ring_at(5), 4_096).unwrap();
    assert!(program.copy_out(5, Range::new(4_095, 2, 4_096), &mut out));
    assert_eq!(out, [0, 0]);
}

#[test]
fn memory_that_is_not_ours_is_refused() {
    let fd = sealed(c"other", 1 << 20).unwrap();
    assert_eq!(Control::attach(fd.as_fd()).err(), Some(Errno::PROTO));
    let layout = Layout::for_flows(1, 4_096, 4_096);
    assert_eq!(
        Receive::attach(fd.as_fd(), layout).err(),
        Some(Errno::PROTO)
    );
    assert!(rustix::fs::ftruncate(&fd, 0).is_err(), "sealed");
}

#[test]
fn memory_whose_size_can_change_is_not_mapped() {
    let layout = Layout::for_flows(1, 4_096, 4_096);
    let (_host, fd) = Control::create(layout).unwrap();
    let mut head = vec![0; 4_096];
    rustix::io::pread(&fd, &mut head, 0).unwrap();
    let forged = |bytes: u64| {
        let fd = rustix::fs::memfd_create(c"forged", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, bytes).unwrap();
        fd
    };
    let control = forged(layout.control_bytes());
    rustix::io::pwrite(&control, &head, 0).unwrap();
    let receive = forged(layout.receive_bytes());
    let refused = |seals: SealFlags| {
        for fd in [&control, &receive] {
            rustix::fs::fcntl_add_seals(fd, seals).unwrap();
        }
        assert_eq!(Control::attach(control.as_fd()).err(), Some(Errno::PROTO));
        let receive = Receive::attach(receive.as_fd(), layout);
        assert_eq!(receive.err(), Some(Errno::PROTO));
    };
    refused(SealFlags::empty());
    refused(SealFlags::GROW);
    for fd in [&control, &receive] {
        rustix::fs::fcntl_add_seals(fd, SealFlags::SHRINK).unwrap();
    }
    Control::attach(control.as_fd()).unwrap();
    Receive::attach(receive.as_fd(), layout).unwrap();
    // A pipe has no seals at all.
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    assert_eq!(Control::attach(pipe.as_fd()).err(), Some(Errno::PROTO));
}
