//! System calls that neither std nor `nowait` has, each with its refusals told from its failures.

pub(crate) mod data;
pub(crate) mod kind;
pub(crate) mod memory;
pub(crate) mod name;
pub(crate) mod temporary;
