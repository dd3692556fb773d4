//! Renders a chart as SVG.

use super::axis::Axis;
use super::{Chart, Mark, Series};
use std::fmt::Write;

const WIDTH: f64 = 820.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 250.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 60.0;

/// Colours that people with colour blindness can distinguish, on white and on black.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// The chart as one self-contained SVG document.
#[must_use]
pub fn render(chart: &Chart) -> String {
    let points = || chart.series.iter().flat_map(|series| &series.points);
    let x = Axis::covering(points().map(|point| point.0));
    let y = Axis::covering(points().map(|point| point.1));
    let frame = Frame { x, y };
    let mut out = String::new();
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\" fill=\"#444\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n"
    );
    let end = WIDTH - RIGHT;
    text(&mut out, (LEFT, 26.0), "start", "font-size=\"16\" fill=\"#111\"", &chart.title);
    text(&mut out, (LEFT, 46.0), "start", "", &chart.subtitle);
    let middle = (LEFT + end) / 2.0;
    text(&mut out, (middle, HEIGHT - 16.0), "middle", "", &chart.x_title);
    let turned = format!("transform=\"rotate(-90 20 {0})\"", (TOP + HEIGHT - BOTTOM) / 2.0);
    text(&mut out, (20.0, (TOP + HEIGHT - BOTTOM) / 2.0), "middle", &turned, &chart.y_title);
    frame.grid(&mut out);
    let mut colours = 0;
    for (position, series) in chart.series.iter().enumerate() {
        // A rule belongs to the points before it and shares their colour.
        if series.mark != Mark::Rule || position == 0 {
            colours += 1;
        }
        let colour = COLOURS[(colours - 1) % COLOURS.len()];
        frame.series(&mut out, series, colour);
        let at = TOP + 20.0 * position as f64 + 10.0;
        legend(&mut out, series, colour, (end + 16.0, at - 4.0));
        text(&mut out, (end + 32.0, at), "start", "", &series.name);
    }
    out.push_str("</svg>\n");
    out
}

/// The mark of a series beside its name.
fn legend(out: &mut String, series: &Series, colour: &str, (x, y): (f64, f64)) {
    let _ = match series.mark {
        Mark::Rule => writeln!(
            out,
            "<path d=\"M{} {y}h20\" stroke=\"{colour}\" stroke-width=\"2\" \
             stroke-dasharray=\"6 4\"/>",
            x - 10.0
        ),
        _ => writeln!(out, "<circle cx=\"{x}\" cy=\"{y}\" r=\"5\" fill=\"{colour}\"/>"),
    };
}

struct Frame {
    x: Axis,
    y: Axis,
}

impl Frame {
    fn at(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let across = LEFT + self.x.position(x) * (WIDTH - LEFT - RIGHT);
        let up = HEIGHT - BOTTOM - self.y.position(y) * (HEIGHT - TOP - BOTTOM);
        (across, up)
    }

    fn grid(&self, out: &mut String) {
        let (end, floor) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for tick in self.y.ticks() {
            let (_, at) = self.at((self.x.low, tick));
            let _ =
                writeln!(out, "<path d=\"M{LEFT} {at:.1}H{end}\" stroke=\"#ddd\" fill=\"none\"/>");
            text(out, (LEFT - 8.0, at + 4.0), "end", "", &self.y.label(tick));
        }
        for tick in self.x.ticks() {
            let (at, _) = self.at((tick, self.y.low));
            let _ = writeln!(out, "<path d=\"M{at:.1} {floor}v5\" stroke=\"#888\" fill=\"none\"/>");
            text(out, (at, floor + 20.0), "middle", "", &self.x.label(tick));
        }
    }

    fn series(&self, out: &mut String, series: &Series, colour: &str) {
        let drawable = |(x, y): &&(f64, f64)| x.is_finite() && y.is_finite();
        let points: Vec<(f64, f64)> =
            series.points.iter().filter(drawable).map(|point| self.at(*point)).collect();
        if series.mark != Mark::Points && points.len() > 1 {
            let mut path = String::new();
            for (position, (x, y)) in points.iter().enumerate() {
                let _ = write!(path, "{}{x:.1} {y:.1}", if position == 0 { 'M' } else { 'L' });
            }
            let dash = if series.mark == Mark::Rule { " stroke-dasharray=\"6 4\"" } else { "" };
            let _ = writeln!(
                out,
                "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>"
            );
        }
        if series.mark != Mark::Rule {
            for (x, y) in points {
                let _ = writeln!(
                    out,
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>"
                );
            }
        }
    }
}

fn text(out: &mut String, at: (f64, f64), anchor: &str, more: &str, content: &str) {
    let (x, y) = at;
    let content = escaped(content);
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {more}>{content}</text>"
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        Chart {
            title: "a < b & c".into(),
            subtitle: "sub".into(),
            x_title: "x".into(),
            y_title: "y".into(),
            series: vec![
                Series {
                    name: "dots".into(),
                    mark: Mark::Points,
                    points: vec![(0.0, 1.0), (10.0, 3.0)],
                },
                Series {
                    name: "bound".into(),
                    mark: Mark::Rule,
                    points: vec![(0.0, 2.0), (10.0, 2.0), (f64::NAN, 1.0)],
                },
            ],
        }
    }

    #[test]
    fn every_point_and_name_is_drawn_inside_the_page() {
        let svg = render(&chart());
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("a &lt; b &amp; c") && svg.contains(">dots<"));
        // Two points and one name with a point; the rule and its name are dashed.
        assert_eq!(svg.matches("<circle").count(), 3);
        assert_eq!(svg.matches("stroke-dasharray").count(), 2);
        assert!(!svg.contains("NaN"));
        assert!(svg.contains("cx=\"80.0\"") && svg.contains("cx=\"570.0\""));
    }
}
