//! Room for as many entries as a call needs: on the stack while they are few, else in pages of its own.

use crate::errno::Result;
use crate::ffi::pages::Pages;

/// Entries that lie on the stack.
const FEW: usize = 64;

/// `count` copies of a value to work with.
#[derive(Debug)]
pub enum Scratch<T: Copy> {
    /// On the stack.
    Few([T; FEW], usize),
    /// In pages.
    Many(Pages<T>),
}

impl<T: Copy> Scratch<T> {
    /// Room for `count` values, all `value`.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn filled(count: usize, value: T) -> Result<Self> {
        if count <= FEW {
            return Ok(Self::Few([value; FEW], count));
        }
        Pages::filled(count, value).map(Self::Many)
    }

    /// The values.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        match self {
            Self::Few(values, count) => values.get_mut(..*count).unwrap_or(&mut []),
            Self::Many(pages) => pages.as_mut_slice(),
        }
    }
}
