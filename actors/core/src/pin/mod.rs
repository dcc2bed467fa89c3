//! Pins: what a server presented when a person looked, and whether it still does.
//!
//! A server describes its tools; the operator classifies them. This folder owns the pure part of that: reading a
//! listing from the bytes a server sent ([`listing`]), the manifest that records it ([`manifest`]), the operator's
//! rules ([`rules`]), the checks between the three ([`load`]) with their report ([`report`]), and what goes out and
//! comes back in a call ([`call`]). It never connects to anything, opens no file and compiles no schema: the
//! connection does the first, the commands the second, and whoever runs [`load::check_tools`] passes the third in.

pub mod annotations;
pub mod call;
pub mod canonical;
pub mod contradiction;
pub mod listing;
pub mod load;
pub mod manifest;
pub mod number;
pub mod report;
pub mod rules;
pub mod scan;
