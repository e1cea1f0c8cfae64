//! Tables: aligned columns that fit the terminal.

use comfy_table::presets::NOTHING;
use comfy_table::{Row, Table};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::colour::{Colour, Stream, paint};

/// No column is cut below this: what is shorter says nothing.
const NARROWEST: usize = 8;

/// What is between two columns.
const GAP: usize = 2;

/// A table as lines, its columns two spaces apart. On a terminal the longest cells are cut, so that every column can be
/// seen; elsewhere nothing is.
pub(crate) fn lines(table: &Table) -> String {
    let width = width();
    let cells = |row: &Row| row.cell_iter().map(comfy_table::Cell::content).collect::<Vec<_>>();
    let mut rows: Vec<Vec<String>> = table.header().into_iter().chain(table.row_iter()).map(cells).collect();
    fit(&mut rows, width);
    let mut fitted = Table::new();
    fitted.load_style(NOTHING).add_rows(rows);
    for column in fitted.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let has_header = table.header().is_some();
    let line = |(number, line): (usize, String)| {
        let line = cut(line.trim_end(), width);
        if has_header && number == 0 { paint(Stream::Stdout, Colour::Bold, &line) + "\n" } else { line + "\n" }
    };
    fitted.lines().enumerate().map(line).collect()
}

/// A text that begins in this column and, on a terminal, goes on in it on the next line, too.
pub(crate) fn hanging(column: usize, text: &str) -> String {
    hung(column, text, width())
}

/// The width of the terminal that answers go to; 0 = it is none.
fn width() -> usize {
    rustix::termios::tcgetwinsize(rustix::stdio::stdout()).map_or(0, |size| usize::from(size.ws_col))
}

fn hung(column: usize, text: &str, width: usize) -> String {
    if width < column + NARROWEST {
        return text.to_owned();
    }
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split(' ') {
        if !line.is_empty() && column + line.width() + 1 + word.width() > width {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines.join(&format!("\n{}", " ".repeat(column)))
}

/// Cuts the cells of the widest columns until a row has this width; 0 = any.
fn fit(rows: &mut [Vec<String>], width: usize) {
    let count = rows.iter().map(Vec::len).max().unwrap_or_default();
    let mut widths: Vec<_> = (0..count)
        .map(|at| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.width()).max().unwrap_or(0))
        .collect();
    // Numbers say something only as a whole.
    let texts: Vec<_> =
        (0..count).filter(|&at| rows.iter().skip(1).any(|row| row.get(at).is_some_and(|it| is_text(it)))).collect();
    let whole = |widths: &[usize]| widths.iter().sum::<usize>() + GAP * count.saturating_sub(1);
    while width > 0 && whole(&widths) > width {
        let Some(&widest) = texts.iter().filter(|&&at| widths[at] > NARROWEST).max_by_key(|&&at| widths[at]) else {
            break;
        };
        widths[widest] -= 1;
    }
    for row in rows {
        for (cell, width) in row.iter_mut().zip(&widths) {
            *cell = cut(cell, *width);
        }
    }
}

fn is_text(cell: &str) -> bool {
    !cell.chars().all(|c| c.is_ascii_digit())
}

/// A text that fits into a width; 0 = into any.
fn cut(text: &str, width: usize) -> String {
    if width == 0 || text.width() <= width {
        return text.to_owned();
    }
    let mut left = width - 1;
    let fits = |c: &char| {
        let needed = c.width().unwrap_or_default();
        let fits = needed <= left;
        left -= needed.min(left);
        fits
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_fit_a_width() {
        for (text, width, fits) in
            [("abcd", 0, "abcd"), ("abcd", 4, "abcd"), ("äbcde", 4, "äbc…"), ("ab", 1, "…"), ("漢字漢字", 6, "漢字…")]
        {
            assert_eq!(cut(text, width), fits);
        }
    }

    #[test]
    fn texts_go_on_below_where_they_began() {
        for (text, width, hung_text) in [
            ("one two three", 20, "one two\n          three"),
            ("one", 20, "one"),
            ("one two three", 0, "one two three"),
            ("one two three", 12, "one two three"),
            ("a-word-longer-than-that b", 20, "a-word-longer-than-that\n          b"),
        ] {
            assert_eq!(hung(10, text, width), hung_text);
        }
    }

    #[test]
    fn the_longest_cells_are_cut_and_numbers_are_not() {
        let row = |key: &str, reason: &str| vec![key.to_owned(), "1796000000000001".to_owned(), reason.to_owned()];
        let mut rows = vec![row("KEY", "REASON"), row(&"k".repeat(60), &"r".repeat(30)), row("short", "why")];
        rows[0][1] = "FENCE".to_owned();
        fit(&mut rows, 60);
        let widths: Vec<_> = rows[1].iter().map(|cell| cell.width()).collect();
        assert_eq!(widths, [20, 16, 20]);
        assert_eq!(rows[1][1], "1796000000000001");
        assert!(rows[1][0].ends_with("k…") && rows[2] == row("short", "why"));
        // Where there is no room at all nothing is cut to nothing.
        fit(&mut rows, 5);
        assert!(rows[1].iter().all(|cell| cell.width() >= NARROWEST));
    }
}
