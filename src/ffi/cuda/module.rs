//! Code: loaded, linked, and looked up.
//!
//! # Safety
//! As in [`super`]: texts end with NUL; logs are as long as their option says and outlive the calls that write to them.

#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::{null_mut, without_provenance_mut};

use super::{Driver, Fault, Function, Module};

/// CU_JIT_ERROR_LOG_BUFFER and its size.
const JIT_ERROR_LOG: c_int = 5;
const JIT_ERROR_LOG_BYTES: c_int = 6;
const LOG_BYTES: usize = 2_048;
/// CU_JIT_INPUT_PTX.
const INPUT_PTX: c_uint = 1;

/// The options that let the driver write about code that it does not take into `log`, and their values.
fn options(log: &mut [u8; LOG_BYTES]) -> ([c_int; 2], [*mut c_void; 2]) {
    // A size is passed in the place of a pointer.
    let bytes = without_provenance_mut(LOG_BYTES - 1);
    let values = [log.as_mut_ptr().cast(), bytes];
    ([JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES], values)
}

/// A log in one line.
fn line(log: &[u8; LOG_BYTES]) -> String {
    let text = CStr::from_bytes_until_nul(log).unwrap_or_default();
    let text = text.to_string_lossy();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("; ")
}

/// PTX with the name that the driver's log gives it.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The name.
    pub name: &'a CStr,
    /// The text.
    pub text: &'a CStr,
}

impl Driver {
    /// Loads PTX.
    ///
    /// # Errors
    /// 222: its version is too new for the driver; with the driver's log where there is one.
    pub fn load(&self, text: &CStr) -> Result<Module, (Fault, String)> {
        // SAFETY: the text ends with NUL.
        unsafe { self.load_image(text.as_ptr()) }
    }

    /// Loads PTX or what the linker made.
    ///
    /// # Safety
    /// `image` is PTX that ends with NUL, or an image of the linker's whose state is there.
    unsafe fn load_image(&self, image: *const c_char) -> Result<Module, (Fault, String)> {
        let mut module = 0;
        let mut log = [0; LOG_BYTES];
        let (mut options, mut values) = options(&mut log);
        // SAFETY: the caller's promise; options and values are two each, and the log is as long as it says.
        let code = unsafe {
            (self.module_load)(
                &raw mut module,
                image,
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        self.said("cuModuleLoadDataEx", code)
            .map(|()| Module(module))
            .map_err(|fault| (fault, line(&log)))
    }

    /// Links PTX, of which one part calls what another has, and loads what results.
    ///
    /// # Errors
    /// As for [`Driver::load`]; what the parts lack of each other is in the log.
    pub fn link(&self, parts: &[Part<'_>]) -> Result<Module, (Fault, String)> {
        let absent = |call| move || (Self::absent(call), String::new());
        let create = self.link_create.ok_or_else(absent("cuLinkCreate_v2"))?;
        let add = self.link_add.ok_or_else(absent("cuLinkAddData_v2"))?;
        let complete = self.link_complete.ok_or_else(absent("cuLinkComplete"))?;
        let destroy = self.link_destroy.ok_or_else(absent("cuLinkDestroy"))?;
        let mut log = [0; LOG_BYTES];
        let (mut options, mut values) = options(&mut log);
        let mut state = 0;
        // SAFETY: options and values are two each; the log lives until the state is destroyed, below.
        let code = unsafe { create(2, options.as_mut_ptr(), values.as_mut_ptr(), &raw mut state) };
        self.said("cuLinkCreate", code)
            .map_err(|fault| (fault, line(&log)))?;
        let mut made = Ok(());
        for part in parts {
            let text = part.text.to_bytes_with_nul();
            // SAFETY: the text is as long as said and the name ends with NUL; the driver copies both; no options.
            let code = unsafe {
                add(
                    state,
                    INPUT_PTX,
                    text.as_ptr().cast_mut().cast(),
                    text.len(),
                    part.name.as_ptr(),
                    0,
                    null_mut(),
                    null_mut(),
                )
            };
            made = made.and_then(|()| self.said("cuLinkAddData", code));
        }
        let mut image = null_mut();
        let mut bytes = 0;
        if made.is_ok() {
            // SAFETY: the pointers are locals'.
            let code = unsafe { complete(state, &raw mut image, &raw mut bytes) };
            made = self.said("cuLinkComplete", code);
        }
        let module = match made {
            // SAFETY: the image is the state's, which is destroyed below.
            Ok(()) => unsafe { self.load_image(image.cast()) },
            Err(fault) => Err((fault, String::new())),
        };
        // SAFETY: nobody has the state or its image any more.
        let code = unsafe { destroy(state) };
        let module = module.map_err(|(fault, words)| match words.as_str() {
            "" => (fault, line(&log)),
            _ => (fault, words),
        })?;
        self.said("cuLinkDestroy", code)
            .map(|()| module)
            .map_err(|fault| (fault, String::new()))
    }

    /// A kernel of a module.
    pub fn function(&self, module: Module, name: &CStr) -> Result<Function, Fault> {
        let mut function = 0;
        // SAFETY: the pointer is a local's, the name ends with NUL.
        let code = unsafe { (self.module_function)(&raw mut function, module.0, name.as_ptr()) };
        self.said("cuModuleGetFunction", code)
            .map(|()| Function(function))
    }
}
