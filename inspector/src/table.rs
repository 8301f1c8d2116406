//! Columns of text.

/// Lines with aligned columns; the last column is as long as it needs to be.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    let mut line = |cells: [&str; N]| {
        let padded: Vec<_> =
            cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(padded.join("  ").trim_end());
        text.push('\n');
    };
    line(head);
    for row in rows {
        line(std::array::from_fn(|column| row[column].as_str()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["1".to_string(), "a".to_string()], ["100".to_string(), String::new()]];
        assert_eq!(table(["PID", "X"], &rows), "PID  X\n1    a\n100\n");
        assert_eq!(table(["PID"], &[]), "PID\n");
    }
}
