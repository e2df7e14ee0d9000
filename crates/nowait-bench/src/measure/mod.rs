//! Measuring: what a way is asked to do, and one round of it on the clock.

pub mod meter;
pub mod pace;
pub mod run;
pub mod work;
