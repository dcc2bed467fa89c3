//! Colours, few and with a meaning each. They are stripped where the output is no terminal or `NO_COLOR` is set.

use anstyle::{AnsiColor, Style};

/// No colour.
pub(crate) const PLAIN: Style = Style::new();
/// A heading.
pub(crate) const BOLD: Style = Style::new().bold();
/// What can be skipped.
pub(crate) const DIM: Style = Style::new().dimmed();
/// Over, well.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// Waits for a person.
pub(crate) const WAITS: Style = AnsiColor::Yellow.on_default().bold();
/// Over, badly.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
/// On its way.
pub(crate) const MOVING: Style = AnsiColor::Cyan.on_default();
