//! `ration-injector copy`: puts the library into a directory, for pods that get it from an init container.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Copies a file into a directory, whole or not at all: the library, from this image into a pod's volume
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to copy
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Where to; what is there by the same name is replaced
    #[arg(value_name = "DIRECTORY")]
    pub directory: PathBuf,
}

/// Copies it.
pub fn run(args: &Args) -> ExitCode {
    match copy(&args.file, &args.directory) {
        Ok(_) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{} cannot be copied into {}: {why}", args.file.display(), args.directory.display());
            ExitCode::FAILURE
        }
    }
}

/// Readable and executable for everyone, whoever the pod's containers run as. Says where it is.
fn copy(file: &Path, directory: &Path) -> io::Result<PathBuf> {
    let name = file.file_name().ok_or_else(|| io::Error::other("it has no name: expected the path of a file"))?;
    let (place, draft) = (directory.join(name), directory.join(format!(".{}.new", name.display())));
    // An init container that is run again may find what it was killed over.
    let _ = fs::remove_file(&draft);
    let mut from = File::open(file)?;
    let mut to = File::create_new(&draft)?;
    io::copy(&mut from, &mut to)?;
    to.set_permissions(Permissions::from_mode(0o555))?;
    drop(to);
    fs::rename(&draft, &place)?;
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let directory = std::env::temp_dir().join(format!("ration-copy-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(directory.join("to")).unwrap();
        let file = directory.join("libration.so");
        for contents in ["one", "two"] {
            fs::write(&file, contents).unwrap();
            let place = copy(&file, &directory.join("to")).unwrap();
            assert_eq!(fs::read_to_string(&place).unwrap(), contents);
            assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o555);
        }
        assert_eq!(fs::read_dir(directory.join("to")).unwrap().count(), 1, "nothing else is left");
        assert!(copy(&file, &directory.join("nowhere")).is_err());
        assert!(copy(&directory.join("nothing"), &directory).is_err());
        let _ = fs::remove_dir_all(&directory);
    }
}
