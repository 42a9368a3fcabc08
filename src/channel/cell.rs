//! The cells: plain structs of atomics, each line of 64 bytes written by one side.
//!
//! One file for each noun of the contract: the header, a member of the family (process, sleeping thread), an epoll, an object.

mod answer;
mod epoll;
mod family;
mod header;
mod object;

pub use answer::*;
pub use epoll::*;
pub use family::*;
pub use header::*;
pub use object::*;

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<HostLine>() == 64);
    assert!(size_of::<ReadLine>() == 64);
    assert!(size_of::<WriteLine>() == 64);
    assert!(size_of::<FactLine>() == 64);
    assert!(size_of::<WishLine>() == 64);
    assert!(size_of::<OptionLine>() == 64);
    assert!(size_of::<WatchLine>() == 64);
    assert!(size_of::<QueueLine>() == 64);
    assert!(size_of::<Item>() == 24);
    assert!(size_of::<ObjectCell>() == 640);
    assert!(size_of::<AnswerCell>() == 256);
    assert!(size_of::<KickLine>() == 64);
    assert!(size_of::<SlotCell>() == 64);
    assert!(size_of::<EpollCell>() == 64);
    assert!(size_of::<ProcCell>() == 64);
};
