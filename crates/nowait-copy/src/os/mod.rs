//! System calls that neither std nor `nowait` contains. Each distinguishes a refusal from a
//! failure.

pub(crate) mod data;
pub(crate) mod kind;
pub(crate) mod name;
pub(crate) mod temporary;
