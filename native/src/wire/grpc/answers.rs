//! The way back: what Python decided, written by the thread of the connections.

use super::status::{self, Call, Failure};
use bytes::Bytes;
use tokio::sync::mpsc::UnboundedReceiver;

/// Bounded by the calls that wait: each is answered once.
pub type Answers = Vec<(Call, Result<Bytes, Failure>)>;

pub async fn write(mut answers: UnboundedReceiver<Answers>) {
    while let Some(together) = answers.recv().await {
        for (mut call, outcome) in together {
            match outcome {
                Ok(framed) => status::succeed(&mut call, framed),
                Err(failure) => status::fail(&mut call, &failure),
            }
        }
    }
}
