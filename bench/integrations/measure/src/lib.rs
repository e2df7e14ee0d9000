//! What the integrations share: files in the page cache or verified not to be, stores that take turns
//! at the same work, and the report of both as text and as the JSON of `nowait bench`.
//!
//! The loop, the clock, and what is made of the rounds are those of `nowait-bench`: `nowait bench --from
//! FILE` shows the JSON, and `make docs` makes pages of it.

mod contest;
mod files;
mod run;
mod text;

pub use contest::{Contest, Work, report_total};
pub use files::{Files, State};
pub use run::{Options, Run};
