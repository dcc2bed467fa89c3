//! Tables aligned by the width that characters take on a terminal, two spaces between columns.
//!
//! Owns the escaping of every cell that holds foreign text. The last column is not padded, so no line ends in spaces.

use std::io::{self, Write};

use anstyle::Style;
use unicode_width::UnicodeWidthStr;

use super::{line, style};

/// The most bytes of a cell: a longer one is cut, so that one row can't flood the terminal.
const CELL_BYTES_MAX: usize = 256;

/// One cell.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// Text that somebody else chose: escaped, cut at `max_bytes`, a dash when there is none.
    pub(crate) fn foreign_cut(text: &str, max_bytes: usize) -> Cell {
        let text = if text.is_empty() { "-".to_owned() } else { line(text, max_bytes) };
        Cell { text, style: style::PLAIN }
    }

    /// Text that somebody else chose, cut only when it is absurdly long.
    pub(crate) fn foreign(text: &str) -> Cell {
        Cell::foreign_cut(text, CELL_BYTES_MAX)
    }

    /// A number or another text of ours.
    pub(crate) fn own(text: impl ToString) -> Cell {
        Cell { text: text.to_string(), style: style::PLAIN }
    }

    /// The same cell in a style.
    #[must_use]
    pub(crate) fn styled(mut self, style: Style) -> Cell {
        self.style = style;
        self
    }
}

/// A table with a heading.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table without rows.
    pub(crate) fn new(headings: &[&str]) -> Table {
        Table { rows: vec![headings.iter().map(|text| Cell::own(text).styled(style::BOLD)).collect()] }
    }

    /// Adds a row, with a cell for each heading.
    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.rows[0].len(), "a row has a cell for each heading");
        self.rows.push(cells);
    }

    /// Writes the table.
    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = self.rows[0].len();
        let mut widths = vec![0; columns];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.text.width());
            }
        }
        for row in &self.rows {
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let style = cell.style;
                write!(out, "{style}{}{style:#}", cell.text)?;
                if column + 1 < columns {
                    write!(out, "{:pad$}", "", pad = width - cell.text.width() + 2)?;
                }
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(table: &Table) -> String {
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        anstream::adapter::strip_str(&String::from_utf8(out).unwrap()).to_string()
    }

    #[test]
    fn columns_are_aligned_by_what_characters_take_on_a_terminal() {
        let mut table = Table::new(&["TOOL", "N", "SUMMARY"]);
        table.row(vec![Cell::foreign("支払い"), Cell::own(1), Cell::foreign("wide")]);
        table.row(vec![Cell::foreign("pay"), Cell::own(100), Cell::foreign("")]);
        insta::assert_snapshot!(written(&table), @r"
        TOOL    N    SUMMARY
        支払い  1    wide
        pay     100  -
        ");
    }

    #[test]
    fn a_cell_can_neither_break_its_line_nor_flood_the_terminal() {
        let mut table = Table::new(&["A", "B"]);
        table.row(vec![Cell::foreign("a\nb\u{202e}c\x1b[31m"), Cell::foreign(&"x".repeat(10_000))]);
        let text = written(&table);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains(r"a b\u{202e}c\x1b[31m"), "{text}");
        assert!(text.len() < 400, "{}", text.len());
    }
}
