//! Tests of the text form of states, for repair by hand: the text of any state gives back the same
//! bytes, and nothing is lost in JSON.

use crate::properties::for_random_runs;
use cellwright_cell::encode::text::{self, LogPosition, RowFilter, TableName};
use cellwright_cell::encode::{self, Rows};

const PLACE: LogPosition = LogPosition { index: 7, term: 3 };

#[test]
fn the_text_of_a_state_gives_back_its_bytes() {
    for_random_runs("text", 60, 160, |run| {
        let mut state = run.run_all()?.state;
        let bytes = encode::save(&state);
        let written = text::write(PLACE, &Rows::of(&state), &RowFilter::default());
        let mut repaired = text::read(&written).map_err(|error| format!("{error}\n{written}"))?;
        if repaired.position != PLACE || !repaired.dropped.is_empty() {
            return Err(format!("{:?}, dropped {:?}", repaired.position, repaired.dropped));
        }
        if repaired.state.hash() != state.hash() || encode::save(&repaired.state) != bytes {
            return Err(format!("the state is another one:\n{written}"));
        }
        // Unvalidated rows are written the same.
        let rows = encode::load_rows(&bytes).map_err(|error| error.to_string())?;
        if text::write(PLACE, &rows, &RowFilter::default()) == written {
            Ok(())
        } else {
            Err("the text depends on how the rows were read".to_owned())
        }
    });
}

#[test]
fn a_part_of_a_state_is_for_reading_only() {
    for_random_runs("parts of text", 20, 120, |run| {
        let state = run.run_all()?.state;
        let rows = Rows::of(&state);
        for table in TableName::ALL {
            let pick = RowFilter { table: Some(table), ..RowFilter::default() };
            let part = text::write(PLACE, &rows, &pick);
            let of_table = format!("{{\"table\":\"{table}\",");
            if let Some(other) = part.lines().skip(1).find(|line| !line.starts_with(&of_table)) {
                return Err(format!("{table}: {other}"));
            }
            let refused = text::read(&part).map(drop).map_err(|error| error.to_string());
            let Err(why) = refused else { return Err(format!("{table} alone is taken")) };
            if !why.starts_with("line 1: part: is true") {
                return Err(why);
            }
        }
        Ok(())
    });
}
