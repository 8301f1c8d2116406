//! The file of the JSON document: tried before anything is measured, so that a place where nothing
//! can be written is told at once. It appears under its name when it is complete.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What stands for standard output.
pub const STDOUT: &str = "-";

/// A document that is not written yet.
#[derive(Debug)]
pub struct Document {
    path: PathBuf,
    /// Where it is written, beside its place; none for standard output.
    unfinished: Option<PathBuf>,
}

impl Document {
    /// Opens a document at `path`, or on standard output for [`STDOUT`]. A file that is there is
    /// replaced.
    ///
    /// # Errors
    /// No file can be made there, or what is there is no regular file: a link or a FIFO may be
    /// another user's.
    pub fn open(path: &Path) -> io::Result<Self> {
        let told = |error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}; give --json another file", path.display()))
        };
        if path == Path::new(STDOUT) {
            return Ok(Self { path: path.into(), unfinished: None });
        }
        let name = path.file_name().ok_or_else(|| told(io::Error::other("this is the name of no file")))?;
        match fs::symlink_metadata(path) {
            Ok(there) if !there.is_file() => {
                return Err(told(io::Error::other("what is there is no regular file")));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(told(error)),
        }
        let unfinished = format!(".{}.{}", name.to_string_lossy(), std::process::id());
        let unfinished = path.with_file_name(unfinished);
        // Not kept: a program that is ended by a signal would leave it.
        File::create_new(&unfinished).and_then(|_| fs::remove_file(&unfinished)).map_err(told)?;
        Ok(Self { path: path.into(), unfinished: Some(unfinished) })
    }

    /// Writes the document.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(self, text: &str) -> io::Result<()> {
        let Some(unfinished) = &self.unfinished else {
            return io::stdout().write_all(text.as_bytes());
        };
        let written = File::create_new(unfinished).and_then(|mut file| {
            let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(unfinished, &self.path));
            written.inspect_err(|_| drop(fs::remove_file(unfinished)))
        });
        written.map_err(|error| io::Error::other(format!("{}: {error}", self.path.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_document_replaces_a_file_and_no_link_is_followed() {
        let folder = std::env::temp_dir().join(format!("ccl-perf-document-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let (file, link) = (folder.join("rows.json"), folder.join("link.json"));
        fs::write(&file, "before").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for wrong in [&link, &folder, &folder.join("none/rows.json")] {
            let error = Document::open(wrong).unwrap_err().to_string();
            assert!(error.contains(wrong.to_str().unwrap()) && error.contains("give --json"), "{error}");
        }
        let document = Document::open(&file).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "a program that is killed here leaves nothing");
        assert_eq!(fs::read_to_string(&file).unwrap(), "before");
        document.write("after").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "after");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
        fs::remove_dir_all(&folder).unwrap();
    }
}
