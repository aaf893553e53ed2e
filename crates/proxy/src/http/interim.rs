//! Interim answers (1xx): a server may give a few before the one that counts, not without end.

use std::task::{Context, Poll};

use h2::client::ResponseFuture;

use super::server1::Failed;
use crate::errors::HttpError;

/// More than any server needs for hints and progress.
const LIMIT: u32 = 64;

/// Those of one try.
#[derive(Debug, Default)]
pub(super) struct Interim(u32);

impl Interim {
    /// One more came.
    pub(super) fn another(&mut self) -> Result<(), Failed> {
        self.0 += 1;
        match self.0 <= LIMIT {
            true => Ok(()),
            false => Err(Failed::Answer(HttpError::io("too many interim answers"))),
        }
    }

    /// Throws away those of an HTTP/2 server.
    pub(super) fn drain(
        &mut self,
        cx: &mut Context<'_>,
        response: &mut ResponseFuture,
    ) -> Result<(), Failed> {
        while let Poll::Ready(Some(Ok(_))) = response.poll_informational(cx) {
            self.another()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_are_fine_and_many_are_not() {
        let mut interim = Interim::default();
        assert!((0..LIMIT).all(|_| interim.another().is_ok()));
        assert!(matches!(interim.another(), Err(Failed::Answer(_))));
    }
}
