//! Where in a value something is: the steps from the top of the file's value down to it.

use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    Field(String),
    Index(usize),
}

/// From the top down.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(pub Vec<Step>);

impl Path {
    #[must_use]
    pub fn field(&self, name: &str) -> Path {
        self.then(Step::Field(name.to_owned()))
    }

    #[must_use]
    pub fn index(&self, position: usize) -> Path {
        self.then(Step::Index(position))
    }

    fn then(&self, step: Step) -> Path {
        let mut steps = self.0.clone();
        steps.push(step);
        Path(steps)
    }

    /// `inner` below this one, as admission writes fields: `task.limits.ram`, `constraints.1`. The
    /// overrides are by number too, and no list.
    #[must_use]
    pub fn below(&self, inner: &str) -> Path {
        let parts = inner.split('.').filter(|part| !part.is_empty());
        parts.fold(self.clone(), |path, part| match (part.parse(), path.0.last()) {
            (Ok(_), Some(Step::Field(list))) if list == "overrides" => path.field(part),
            (Ok(position), _) => path.index(position),
            (Err(_), _) => path.field(part),
        })
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, step) in self.0.iter().enumerate() {
            match step {
                Step::Field(name) if position == 0 => write!(f, "{name}")?,
                Step::Field(name) => write!(f, ".{name}")?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}
