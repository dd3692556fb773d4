//! Parquet files of one table and one day, written and read column by column.
//!
//! The files are ordinary: DuckDB, Spark or Trino read them as they are. Rows keep their order,
//! which is that of time, so the statistics of a row group tell whether it is worth reading.
//!
//! Rejected: the Arrow reader and writer of the same library. They bring forty crates, and rows
//! come from SQLite and go back to it one by one.

use crate::tables::{Column, Kind, Table};
use parquet::basic::Compression;
use parquet::column::reader::ColumnReader;
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::statistics::Statistics;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Rows that are decoded together.
pub(crate) const ROW_GROUP_ROWS: usize = 64 << 10;

/// The Parquet schema of the table.
fn parquet_schema(table: &Table) -> String {
    let column_schema = |column: &Column| {
        let rule = if column.required { "REQUIRED" } else { "OPTIONAL" };
        let name = column.name;
        match column.kind {
            Kind::Integer => format!("{rule} INT64 {name};"),
            Kind::Time => format!("{rule} INT64 {name} (TIMESTAMP(MILLIS,true));"),
            Kind::Text => format!("{rule} BYTE_ARRAY {name} (UTF8);"),
        }
    };
    let columns: String = table.columns.iter().map(column_schema).collect();
    format!("message {} {{ {columns} }}", table.name)
}

/// Writes rows of one table; nothing is complete before [`ParquetWriter::close`].
pub(crate) struct ParquetWriter {
    table: &'static Table,
    file: SerializedFileWriter<File>,
    /// The current row group, column by column.
    buffered: Vec<Vec<Value>>,
}

impl ParquetWriter {
    pub fn new(table: &'static Table, file: File) -> Result<ParquetWriter, ParquetError> {
        let schema = Arc::new(parse_message_type(&parquet_schema(table))?);
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_created_by("cellwright".into())
            .build();
        let file = SerializedFileWriter::new(file, schema, Arc::new(properties))?;
        Ok(ParquetWriter { table, file, buffered: vec![Vec::new(); table.columns.len()] })
    }

    pub fn add(&mut self, row: impl Iterator<Item = Value>) -> Result<(), ParquetError> {
        self.buffered.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
        match self.buffered[0].len() {
            ROW_GROUP_ROWS => self.flush(),
            _ => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<(), ParquetError> {
        if self.buffered[0].is_empty() {
            return Ok(());
        }
        let mut group = self.file.next_row_group()?;
        for (column, values) in self.table.columns.iter().zip(&mut self.buffered) {
            write_column(&mut group, column, std::mem::take(values))?;
        }
        group.close()?;
        Ok(())
    }

    /// Finishes the file and returns it, for syncing.
    pub fn close(mut self) -> Result<File, ParquetError> {
        self.flush()?;
        self.file.into_inner()
    }
}

fn write_column(
    group: &mut SerializedRowGroupWriter<'_, File>,
    column: &Column,
    values: Vec<Value>,
) -> Result<(), ParquetError> {
    let missing = || ParquetError::General(format!("no column {} in the file", column.name));
    let mut writer = group.next_column()?.ok_or_else(missing)?;
    let levels: Vec<i16> = values.iter().map(|value| i16::from(*value != Value::Null)).collect();
    let levels = (!column.required).then_some(levels);
    let levels = levels.as_deref();
    let present = values.into_iter().filter(|value| !matches!(value, Value::Null));
    match column.kind {
        Kind::Text => {
            let text = |value| match value {
                Value::Text(text) => ByteArray::from(text.into_bytes()),
                other => ByteArray::from(format!("{other:?}").into_bytes()),
            };
            let values: Vec<ByteArray> = present.map(text).collect();
            writer.typed::<ByteArrayType>().write_batch(&values, levels, None)?;
        }
        Kind::Integer | Kind::Time => {
            let number = |value| if let Value::Integer(number) = value { number } else { 0 };
            let values: Vec<i64> = present.map(number).collect();
            writer.typed::<Int64Type>().write_batch(&values, levels, None)?;
        }
    }
    writer.close()
}

/// One column of one row group, in memory.
pub(crate) enum Decoded {
    Integers(Vec<Option<i64>>),
    Texts(Vec<Option<ByteArray>>),
}

impl Decoded {
    pub fn value(&self, row: usize) -> ToSqlOutput<'_> {
        let value = match self {
            Decoded::Integers(values) => match values.get(row) {
                Some(Some(number)) => ValueRef::Integer(*number),
                _ => ValueRef::Null,
            },
            Decoded::Texts(values) => match values.get(row) {
                Some(Some(text)) => ValueRef::Text(text.data()),
                _ => ValueRef::Null,
            },
        };
        ToSqlOutput::Borrowed(value)
    }
}

/// Reads a file of one table.
///
/// The library panics on some damaged files. SQLite, our caller, cannot be unwound through, so a
/// panic would end the master; here it becomes an error like any other.
pub(crate) struct ParquetReader {
    file: SerializedFileReader<File>,
    /// Position in the file of each column of the table. Files are kept for longer than a release:
    /// one may lack optional columns that the next release adds.
    column_positions: Vec<Option<usize>>,
}

impl ParquetReader {
    pub fn new(table: &Table, file: File) -> Result<ParquetReader, ParquetError> {
        let file = without_panic(|| SerializedFileReader::new(file))?;
        let schema = file.metadata().file_metadata().schema_descr();
        let position =
            |column: &Column| schema.columns().iter().position(|found| found.name() == column.name);
        let positions: Vec<Option<usize>> = table.columns.iter().map(position).collect();
        let mut found = table.columns.iter().zip(&positions);
        if let Some((column, _)) = found.find(|(column, at)| column.required && at.is_none()) {
            return Err(ParquetError::General(format!("it has no column {}", column.name)));
        }
        let groups = file.metadata().row_groups();
        if groups.iter().any(|group| usize::try_from(group.num_rows()).is_err()) {
            return Err(ParquetError::General("less than no rows".into()));
        }
        Ok(ParquetReader { file, column_positions: positions })
    }

    pub fn group_count(&self) -> usize {
        self.file.num_row_groups()
    }

    pub fn row_count(&self, group: usize) -> usize {
        let rows = self.file.metadata().row_group(group).num_rows();
        usize::try_from(rows).unwrap_or(0)
    }

    /// The first and the last time in a group, if the file has them.
    pub fn time_range(&self, group: usize) -> Option<(i64, i64)> {
        let position = self.column_positions.first().copied().flatten()?;
        let column = self.file.metadata().row_group(group).column(position);
        match column.statistics()? {
            Statistics::Int64(found) => Some((*found.min_opt()?, *found.max_opt()?)),
            _ => None,
        }
    }

    /// `None` where the file has no such column.
    pub fn column(&self, group: usize, at: usize) -> Result<Option<Decoded>, ParquetError> {
        let Some(position) = self.column_positions.get(at).copied().flatten() else {
            return Ok(None);
        };
        without_panic(|| self.decode(group, position)).map(Some)
    }

    fn decode(&self, group: usize, position: usize) -> Result<Decoded, ParquetError> {
        let rows = self.row_count(group);
        // Not the number in the file, as long as no row of it has been read.
        let room = rows.min(ROW_GROUP_ROWS);
        let mut levels = Vec::new();
        let (found, read) = match self.file.get_row_group(group)?.get_column_reader(position)? {
            ColumnReader::Int64ColumnReader(mut reader) => {
                let mut values = Vec::with_capacity(room);
                let read = reader.read_records(rows, Some(&mut levels), None, &mut values)?.0;
                (Decoded::Integers(spread_nulls(values, &levels)), read)
            }
            ColumnReader::ByteArrayColumnReader(mut reader) => {
                let mut values = Vec::with_capacity(room);
                let read = reader.read_records(rows, Some(&mut levels), None, &mut values)?.0;
                (Decoded::Texts(spread_nulls(values, &levels)), read)
            }
            _ => return Err(ParquetError::General("a column of a kind nobody writes".into())),
        };
        if read != rows {
            return Err(ParquetError::General(format!("{read} of {rows} rows are there")));
        }
        Ok(found)
    }
}

fn without_panic<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, ParquetError> {
    let done = catch_unwind(AssertUnwindSafe(read));
    done.unwrap_or_else(|_| Err(ParquetError::General("what it says makes no sense".into())))
}

/// Inserts `None` for absent values among the present ones.
fn spread_nulls<T>(values: Vec<T>, levels: &[i16]) -> Vec<Option<T>> {
    if levels.is_empty() {
        return values.into_iter().map(Some).collect();
    }
    let mut values = values.into_iter();
    levels.iter().map(|level| if *level > 0 { values.next() } else { None }).collect()
}
