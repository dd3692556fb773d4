//! SQL over history. Callers that may read the feed of events may query it: the tables hold the
//! same.

use super::call::Call;
use super::{Api, ApiResult, reply};
use cellwright_api::error::{ApiError, Code};
use cellwright_api::types::{DEFAULT_SQL_ROWS, MAX_SQL_ROWS, SqlAnswer, SqlQuery, SqlValue};
use cellwright_history::{MAX_ARGS, Value};

impl Api {
    pub(super) async fn sql(&self, mut call: Call) -> ApiResult {
        let SqlQuery { query, args, limit } = call.json(self).await?;
        let limit = limit.unwrap_or(DEFAULT_SQL_ROWS);
        if limit == 0 || limit > MAX_SQL_ROWS {
            let allowed = format!("1 to {MAX_SQL_ROWS}");
            return Err(ApiError::field("limit", &limit.to_string(), &allowed));
        }
        if args.len() > MAX_ARGS {
            let value = format!("{} values", args.len());
            return Err(ApiError::field("args", &value, &format!("at most {MAX_ARGS}")));
        }
        let nowhere = || ApiError::new(Code::NotReady, "this replica keeps no history");
        let history = self.services.history().ok_or_else(nowhere)?;
        let args = args.into_iter().map(to_sql_parameter).collect();
        let rows = usize::try_from(limit).unwrap_or(usize::MAX);
        let (answer, index) = history.query(&call.actor_text(), query, args, rows).await?;
        let row = |row: Vec<Value>| row.into_iter().map(to_json_value).collect();
        let answer = SqlAnswer {
            columns: answer.columns,
            rows: answer.rows.into_iter().map(row).collect(),
            truncated: answer.truncated,
            reaches_back_to: answer.reaches_back_to,
            archived: self.services.archive().is_some(),
            index,
        };
        Ok(reply::json(&call, index, &answer))
    }
}

fn to_sql_parameter(value: SqlValue) -> Value {
    match value {
        SqlValue::Null => Value::Null,
        SqlValue::Integer(number) => Value::Integer(number),
        SqlValue::Real(number) => Value::Real(number),
        SqlValue::Text(text) => Value::Text(text),
    }
}

/// JSON has no infinity.
fn to_json_value(value: Value) -> SqlValue {
    match value {
        Value::Null => SqlValue::Null,
        Value::Integer(number) => SqlValue::Integer(number),
        Value::Real(number) if number.is_finite() => SqlValue::Real(number),
        Value::Real(_) => SqlValue::Null,
        Value::Text(text) => SqlValue::Text(text),
    }
}
