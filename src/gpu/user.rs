//! The kernel `user`: a function of the operator's in PTX. No CPU can run it.

use super::chunk::Chunk;
use super::kernel::{Finding, KernelState, PayloadKernel};
use super::ptx::{self, UserPtx};
use crate::config::payload::{User, WithoutGpu};

/// Bytes of device memory that the function is given: zero at the start.
const PARAMS_BYTES: usize = 4_096;

/// A function in PTX, looked at and not yet linked.
#[derive(Clone, Debug)]
pub struct UserCode {
    /// Where it comes from, for the operator.
    pub file: String,
    /// Its name.
    pub function: String,
    /// The PTX that has it.
    pub text: String,
    /// What the PTX says of itself.
    pub about: UserPtx,
}

impl UserCode {
    /// Looks at PTX.
    ///
    /// # Errors
    /// One line: what is missing.
    pub fn new(file: &str, function: &str, text: Vec<u8>) -> Result<Self, String> {
        let about = UserPtx::examine(&text, function)?;
        Ok(Self {
            file: file.to_owned(),
            function: function.to_owned(),
            text: String::from_utf8(text).map_err(|error| error.to_string())?,
            about,
        })
    }

    /// The kernel that calls the function.
    pub(super) fn caller(&self) -> String {
        ptx::user_kernel(&self.function)
    }
}

/// A rule's function.
#[derive(Debug)]
pub(super) struct UserKernel {
    code: UserCode,
    without: WithoutGpu,
    unjudged: u64,
}

impl UserKernel {
    /// The function of a rule.
    ///
    /// # Errors
    /// As for [`UserCode::new`].
    pub(super) fn new(user: &User, text: Vec<u8>) -> Result<Self, String> {
        Ok(Self {
            code: UserCode::new(&user.file, &user.function, text)?,
            without: user.without,
            unjudged: 0,
        })
    }
}

impl PayloadKernel for UserKernel {
    fn name(&self) -> &'static str {
        "user"
    }

    /// There is no GPU: what the rule says to that.
    fn run(&mut self, _: &mut Chunk<'_>, _: &mut KernelState) -> Finding {
        self.unjudged += 1;
        Finding {
            failed: self.without == WithoutGpu::Refuse,
            ..Finding::NOTHING
        }
    }

    fn device_params(&mut self) -> Result<Vec<u8>, String> {
        Ok(vec![0; PARAMS_BYTES])
    }

    fn code(&self) -> Option<&UserCode> {
        Some(&self.code)
    }

    fn refuses_the_cpu(&self) -> bool {
        self.without == WithoutGpu::Refuse
    }

    fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("payload_user_unjudged", self.unjudged);
    }
}
