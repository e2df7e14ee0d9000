//! Measuring: the options, the jobs of ways, a round on the clock, and the loop over ways and
//! rounds.

pub mod cache;
pub mod figure;
pub mod meter;
pub mod mixed;
pub mod options;
pub mod pace;
pub mod progress;
pub mod run;
pub mod turn;
pub mod work;
