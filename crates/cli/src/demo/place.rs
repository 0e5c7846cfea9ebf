//! Files that the demo writes in the end.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};

use super::Trouble;

/// Where a plot or a result is to be written: tried before the demo, which takes a while, and not left behind empty.
pub struct Place {
    path: PathBuf,
    is_new: bool,
}

impl Place {
    /// A place that can be written to. What is there already stays until there is something to write.
    pub fn try_out(path: &Path) -> Result<Place, Trouble> {
        let failed = |error| Trouble::Result { path: path.to_owned(), error };
        let is_new = match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                OpenOptions::new().append(true).open(path).map_err(failed)?;
                false
            }
            Err(error) => return Err(failed(error)),
        };
        Ok(Place { path: path.to_owned(), is_new })
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes there.
    pub fn write(&mut self, text: &str) -> Result<(), Trouble> {
        std::fs::write(&self.path, text).map_err(|error| Trouble::Result { path: self.path.clone(), error })?;
        self.is_new = false;
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_new {
            let _ = std::fs::remove_file(&self.path); // ours, and empty
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_tried_out_and_nothing_empty_is_left_there() {
        let path = std::env::temp_dir().join(format!("ration-plot-{}.svg", std::process::id()));
        let place = |path: &Path| Place::try_out(path).unwrap_or_else(|trouble| panic!("{trouble}"));
        drop(place(&path));
        assert!(!path.exists(), "an empty file was left behind");
        place(&path).write("drawn").expect("written");
        drop(place(&path));
        assert_eq!(std::fs::read_to_string(&path).expect("it stays"), "drawn");
        let _ = std::fs::remove_file(&path);
        let trouble = Place::try_out(Path::new("/nowhere/at/all.svg")).err().expect("no such directory").to_string();
        assert!(trouble.starts_with("/nowhere/at/all.svg: No such file") && trouble.contains("may write"), "{trouble}");
    }
}
