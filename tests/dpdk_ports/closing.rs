//! A port is closed where EAL's thread cannot have a handler of its driver in hand.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Since when EAL's thread is in the handler below.
static IS_INSIDE: AtomicBool = AtomicBool::new(false);
/// The handler may end.
static MAY_END: AtomicBool = AtomicBool::new(false);

type AlarmSet = unsafe extern "C" fn(u64, unsafe extern "C" fn(*mut c_void), *mut c_void) -> c_int;

unsafe extern "C" fn handler(_: *mut c_void) {
    IS_INSIDE.store(true, Ordering::SeqCst);
    while !MAY_END.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
}

/// `rte_eal_alarm_set` of the EAL that the plug-in brought.
fn alarm_set() -> AlarmSet {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .find(|path| path.contains("librte_eal.so"))
        .expect("EAL in this process");
    let path = std::ffi::CString::new(path).unwrap();
    let name: &CStr = c"rte_eal_alarm_set";
    // SAFETY: an object that is there already.
    let object = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    // SAFETY: the object stays until the process ends.
    let symbol = unsafe { libc::dlsym(object, name.as_ptr()) };
    assert!(!symbol.is_null());
    // SAFETY: its header gives this type.
    unsafe { std::mem::transmute::<*mut c_void, AlarmSet>(symbol) }
}

#[test]
fn a_port_is_closed_when_its_drivers_handler_is_through() {
    let name = "closing::a_port_is_closed_when_its_drivers_handler_is_through";
    in_own_process(name, false, || {
        let device = PluginDevice::open(&config(PortSelector::Vdev("net_null0".into()))).unwrap();
        // Whoever has lent its memory leaves EAL as it is, whose own end would wait too.
        assert!(device.memory().is_some());
        let set = alarm_set();
        // SAFETY: the handler uses no argument.
        assert_eq!(unsafe { set(1, handler, std::ptr::null_mut()) }, 0);
        wait_until("EAL's thread is in the handler", || {
            IS_INSIDE.load(Ordering::SeqCst)
        });
        let (_open, never) = std::sync::mpsc::channel::<()>();
        std::thread::spawn(move || {
            let _ = never.recv_timeout(Duration::from_millis(500));
            MAY_END.store(true, Ordering::SeqCst);
        });
        drop(device);
        assert!(
            MAY_END.load(Ordering::SeqCst),
            "the port was closed beside a handler"
        );
    });
}
