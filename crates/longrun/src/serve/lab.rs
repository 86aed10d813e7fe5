//! A fault on purpose, to see what becomes of a server whose engine panics. It is part of no build that people use.

use longrun_lm::Result;
use longrun_lm::engine::{Mask, TokenMask};

use super::error::ApiResult;
use super::fields::Fields;

/// The mask that a request asks for with `lab_panic_after`.
pub(crate) fn fault(fields: &mut Fields) -> ApiResult<Option<Mask>> {
    let after = fields.count("lab_panic_after")?;
    Ok(after.map(|after| Mask(Box::new(Panics(after)))))
}

/// Panics on the engine's thread once it has let so many tokens pass.
struct Panics(usize);

impl TokenMask for Panics {
    #[allow(clippy::panic)]
    fn apply(&mut self, _: &mut [f32]) -> Result<()> {
        match self.0.checked_sub(1) {
            Some(left) => self.0 = left,
            None => panic!("a fault on purpose"),
        }
        Ok(())
    }

    fn accept(&mut self, _: u32) -> Result<()> {
        Ok(())
    }

    fn fork(&self) -> Box<dyn TokenMask> {
        Box::new(Self(self.0))
    }
}
