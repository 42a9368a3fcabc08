//! dprintf, its checked form, execl, execlp and execle: the variable arguments become a va_list, as a compiler of C would make
//! it, and go to the function that takes one.
//!
//! # Safety
//! Each function is entered by C with its own convention (System V AMD64 section 3.5.7, AAPCS64 appendix B): the argument
//! registers are stored where the list says that they lie, and nothing else is touched.

use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_void};

unsafe extern "C-unwind" fn with_list(
    fd: c_int,
    format: *const c_char,
    list: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments, and a list of them.
    unsafe { knet::shim::stdio::vdprintf(fd, format, list) }
}

unsafe extern "C-unwind" fn checked_with_list(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    list: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments, and a list of them.
    unsafe { knet::shim::stdio::__vdprintf_chk(fd, flag, format, list) }
}

unsafe extern "C-unwind" fn execl_with_list(
    path: *const c_char,
    first: *const c_char,
    list: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments, and a list of them.
    unsafe { knet::shim::exec::execl(path, first, list) }
}

unsafe extern "C-unwind" fn execlp_with_list(
    file: *const c_char,
    first: *const c_char,
    list: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments, and a list of them.
    unsafe { knet::shim::exec::execlp(file, first, list) }
}

unsafe extern "C-unwind" fn execle_with_list(
    path: *const c_char,
    first: *const c_char,
    list: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments, and a list of them.
    unsafe { knet::shim::exec::execle(path, first, list) }
}

/// Stores the argument registers, makes the list behind `$named` integer arguments in `$list`, and calls `$call`.
#[cfg(target_arch = "x86_64")]
macro_rules! entry {
    ($named:literal, $list:literal, $call:path) => {
        naked_asm!(
            ".cfi_startproc",
            "sub rsp, 216",
            ".cfi_adjust_cfa_offset 216",
            // The register save area lies at 32: six integers, then eight vectors.
            "mov [rsp + 48], rdx",
            "mov [rsp + 56], rcx",
            "mov [rsp + 64], r8",
            "mov [rsp + 72], r9",
            "test al, al",
            "je 2f",
            "movaps [rsp + 80], xmm0",
            "movaps [rsp + 96], xmm1",
            "movaps [rsp + 112], xmm2",
            "movaps [rsp + 128], xmm3",
            "movaps [rsp + 144], xmm4",
            "movaps [rsp + 160], xmm5",
            "movaps [rsp + 176], xmm6",
            "movaps [rsp + 192], xmm7",
            "2:",
            // The list lies at 8: next integer, next vector, arguments on the stack, save area.
            concat!("mov dword ptr [rsp + 8], 8 * ", $named),
            "mov dword ptr [rsp + 12], 48",
            "lea rax, [rsp + 224]",
            "mov [rsp + 16], rax",
            "lea rax, [rsp + 32]",
            "mov [rsp + 24], rax",
            concat!("lea ", $list, ", [rsp + 8]"),
            "call {call}",
            "add rsp, 216",
            ".cfi_adjust_cfa_offset -216",
            "ret",
            ".cfi_endproc",
            call = sym $call,
        )
    };
}

/// See above.
#[cfg(target_arch = "aarch64")]
macro_rules! entry {
    ($named:literal, $list:literal, $call:path) => {
        naked_asm!(
            ".cfi_startproc",
            "stp x29, x30, [sp, #-224]!",
            ".cfi_def_cfa_offset 224",
            ".cfi_offset 29, -224",
            ".cfi_offset 30, -216",
            // Integers end at 96, vectors at 224, where the arguments on the stack begin.
            "stp x2, x3, [sp, #48]",
            "stp x4, x5, [sp, #64]",
            "stp x6, x7, [sp, #80]",
            "stp q0, q1, [sp, #96]",
            "stp q2, q3, [sp, #128]",
            "stp q4, q5, [sp, #160]",
            "stp q6, q7, [sp, #192]",
            // The list lies at 16: stack, end of the integers, end of the vectors, and where in both it stands.
            "add x9, sp, #224",
            "str x9, [sp, #16]",
            "str x9, [sp, #32]",
            "add x9, sp, #96",
            "str x9, [sp, #24]",
            concat!("mov w9, #-(64 - 8 * ", $named, ")"),
            "str w9, [sp, #40]",
            "mov w9, #-128",
            "str w9, [sp, #44]",
            concat!("add ", $list, ", sp, #16"),
            "bl {call}",
            "ldp x29, x30, [sp], #224",
            ".cfi_def_cfa_offset 0",
            "ret",
            ".cfi_endproc",
            call = sym $call,
        )
    };
}

#[cfg(target_arch = "x86_64")]
mod entries {
    use super::{
        checked_with_list, execl_with_list, execle_with_list, execlp_with_list, naked_asm,
        with_list,
    };

    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn dprintf() {
        entry!(2, "rdx", with_list)
    }

    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn execl() {
        entry!(2, "rdx", execl_with_list)
    }

    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn execlp() {
        entry!(2, "rdx", execlp_with_list)
    }

    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn execle() {
        entry!(2, "rdx", execle_with_list)
    }

    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn __dprintf_chk() {
        entry!(3, "rcx", checked_with_list)
    }
}

#[cfg(target_arch = "aarch64")]
mod entries {
    use super::{
        checked_with_list, execl_with_list, execle_with_list, execlp_with_list, naked_asm,
        with_list,
    };

    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn dprintf() {
        entry!(2, "x2", with_list)
    }

    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn execl() {
        entry!(2, "x2", execl_with_list)
    }

    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn execlp() {
        entry!(2, "x2", execlp_with_list)
    }

    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn execle() {
        entry!(2, "x2", execle_with_list)
    }

    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn __dprintf_chk() {
        entry!(3, "x3", checked_with_list)
    }
}
