//! Charts as SVG text, written by hand: points and lines over two linear axes, which is all the
//! experiments need. A chart library would bring fonts and drawing back ends for a page of text.
//!
//! A chart is data ([`Chart`]); [`render`] turns it into a self-contained SVG with a legend, axis
//! titles and rounded tick marks, readable on light and dark pages.

mod axis;
mod svg;

pub use svg::render;

/// How the points of a series are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Points,
    /// Points joined in the order given.
    Line,
    /// A line without points: bounds and targets.
    Rule,
}

/// One set of points under one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub name: String,
    pub mark: Mark,
    pub points: Vec<(f64, f64)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    pub title: String,
    pub subtitle: String,
    pub x_title: String,
    pub y_title: String,
    pub series: Vec<Series>,
}
