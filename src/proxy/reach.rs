//! The reach check: no server is started with an argument that names what the policy and the approvals stand on.
//!
//! Owns the reading of arguments as paths and their comparison with the protected files. A guard against a mistake in
//! the configuration, not a boundary: a server runs as the operator, and what it reaches by other means (its own
//! configuration, a path that a call tells it) is not seen here.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use thiserror::Error;

/// A server whose argument reaches a protected file.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "server {server:?}: its argument {argument:?} reaches {file}, which policy and approvals stand on: point the \
     server elsewhere, or set skip_path_check on it when it can't write there"
)]
pub struct Reached {
    /// The server.
    pub server: String,
    /// The argument as it is written.
    pub argument: String,
    /// The protected file.
    pub file: PathBuf,
}

/// The files that no server may reach, and everything above them.
#[derive(Debug, Default)]
pub struct Protected {
    /// By device and inode.
    existing: HashMap<(u64, u64), PathBuf>,
    /// By resolved path, those that do not exist yet.
    unborn: HashMap<PathBuf, PathBuf>,
    /// Where relative arguments start.
    cwd: PathBuf,
    /// What `~` stands for.
    home: Option<PathBuf>,
}

impl Protected {
    /// Protects `files`; relative arguments start at `cwd`.
    pub fn new(files: impl IntoIterator<Item = PathBuf>, cwd: PathBuf, home: Option<PathBuf>) -> Protected {
        let mut protected = Protected { cwd, home, ..Protected::default() };
        for file in files {
            let written = protected.absolute(&file);
            let resolved = protected.resolved(&file);
            if fs::metadata(&file).is_err()
                && let Some(resolved) = &resolved
            {
                protected.unborn.insert(resolved.clone(), file.clone());
            }
            for path in written.ancestors().chain(resolved.iter().flat_map(|path| path.ancestors())) {
                if let Ok(metadata) = fs::metadata(path) {
                    let id = (metadata.dev(), metadata.ino());
                    protected.existing.entry(id).or_insert_with(|| file.clone());
                }
            }
        }
        protected
    }

    /// Looks at a server's command line; the program itself is not looked at.
    ///
    /// # Errors
    /// The first argument that reaches a protected file.
    pub fn check(&self, server: &str, command: &[String]) -> Result<(), Reached> {
        for argument in command.iter().skip(1) {
            let reached =
                self.candidates(argument).into_iter().find_map(|candidate| self.reaches(&candidate));
            if let Some(file) = reached {
                let (server, argument) = (server.to_owned(), argument.clone());
                return Err(Reached { server, argument, file });
            }
        }
        Ok(())
    }

    fn reaches(&self, candidate: &Path) -> Option<PathBuf> {
        match fs::metadata(self.cwd.join(candidate)) {
            Ok(metadata) => self.existing.get(&(metadata.dev(), metadata.ino())),
            Err(_) => self.unborn.get(&self.resolved(candidate)?),
        }
        .cloned()
    }

    /// The paths that an argument may name, read liberally.
    fn candidates(&self, argument: &str) -> Vec<PathBuf> {
        let mut texts = vec![argument.to_owned()];
        for separator in ['=', ':'] {
            texts.extend(argument.split_once(separator).map(|(_, rest)| rest.to_owned()));
        }
        if argument.starts_with('-') && !argument.starts_with("--") {
            let mut rest = argument.chars();
            rest.by_ref().take(2).for_each(drop);
            texts.push(rest.as_str().to_owned());
        }
        let urls: Vec<String> = texts.iter().filter_map(|text| file_url_path(text)).collect();
        texts.extend(urls);
        texts.into_iter().filter(|text| !text.is_empty()).map(|text| self.expanded(&text)).collect()
    }

    fn expanded(&self, text: &str) -> PathBuf {
        let below_home = match text.strip_prefix('~') {
            Some("") => Some(""),
            Some(rest) => rest.strip_prefix('/'),
            None => None,
        };
        match (below_home, &self.home) {
            (Some(rest), Some(home)) => home.join(rest),
            (Some(_), None) | (None, _) => PathBuf::from(text),
        }
    }

    /// The path as written, absolute, with `.` and `..` worked out on the text.
    fn absolute(&self, path: &Path) -> PathBuf {
        let mut out = PathBuf::new();
        for component in self.cwd.join(path).components() {
            match component {
                Component::ParentDir => {
                    out.pop();
                }
                Component::CurDir => {}
                Component::Prefix(_) | Component::RootDir | Component::Normal(_) => out.push(component),
            }
        }
        out
    }

    /// The path with links resolved as far as it exists: a file that is not there yet through its directory.
    fn resolved(&self, path: &Path) -> Option<PathBuf> {
        let absolute = self.absolute(path);
        fs::canonicalize(&absolute).ok().or_else(|| {
            let directory = fs::canonicalize(absolute.parent()?).ok()?;
            Some(directory.join(absolute.file_name()?))
        })
    }
}

/// The path of a `file:` URL.
fn file_url_path(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once(':')?;
    if !scheme.eq_ignore_ascii_case("file") {
        return None;
    }
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let path = match rest.strip_prefix("//") {
        Some(rest) => rest.find('/').map_or("", |start| &rest[start..]),
        None if rest.starts_with('/') => rest,
        None => "",
    };
    percent_decoded(path)
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let (high, low) = (digit()?, digit()?);
        bytes.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Place {
        _root: tempfile::TempDir,
        home: PathBuf,
        proxy: PathBuf,
        elsewhere: PathBuf,
    }

    fn place() -> Place {
        let root = tempfile::tempdir().unwrap();
        let home = root.path().canonicalize().unwrap();
        let (proxy, elsewhere) = (home.join("proxy"), home.join("sandbox"));
        fs::create_dir(&proxy).unwrap();
        fs::create_dir(&elsewhere).unwrap();
        fs::write(proxy.join("proxy.json"), "{}").unwrap();
        Place { _root: root, home, proxy, elsewhere }
    }

    fn check(place: &Place, argument: &str) -> Result<(), Reached> {
        let files = [place.proxy.join("proxy.json"), place.proxy.join("runs.db")];
        let protected = Protected::new(files, place.home.clone(), Some(place.home.clone()));
        protected.check("fs", &["server".to_owned(), argument.to_owned()])
    }

    #[test]
    fn an_argument_that_names_a_protected_file_or_what_holds_it_is_refused() {
        let place = place();
        let link = place.elsewhere.join("link");
        symlink(&place.proxy, &link).unwrap();
        let dir = place.proxy.to_str().unwrap();
        for argument in [
            dir.to_owned(),
            format!("{dir}/"),
            format!("{dir}/../proxy"),
            link.to_str().unwrap().to_owned(),
            format!("{}/runs.db", link.to_str().unwrap()),
            format!("--root={dir}"),
            format!("--root:{dir}"),
            format!("-r{dir}"),
            place.home.to_str().unwrap().to_owned(),
            format!("{dir}/runs.db"),
            format!("{dir}/proxy.json"),
            "/".to_owned(),
            "proxy".to_owned(),
            ".".to_owned(),
            "~".to_owned(),
            "~/".to_owned(),
            "~/proxy".to_owned(),
            format!("file://{dir}"),
            format!("FILE://localhost{dir}/"),
            format!("--root=file://{}", dir.replace("proxy", "%70roxy")),
        ] {
            let refused = check(&place, &argument).unwrap_err().to_string();
            assert!(
                refused.contains("skip_path_check") && refused.contains("\"fs\""),
                "{argument}: {refused}"
            );
        }
    }

    #[test]
    fn other_arguments_are_accepted() {
        let place = place();
        let elsewhere = place.elsewhere.to_str().unwrap();
        for argument in [
            elsewhere.to_owned(),
            "~/sandbox".to_owned(),
            format!("-r{elsewhere}"),
            format!("file://{elsewhere}"),
            format!("{}/other.db", place.proxy.to_str().unwrap()),
            "--flag".to_owned(),
            "not-a-path".to_owned(),
            "-v".to_owned(),
            "-p8080".to_owned(),
            "--port=8080".to_owned(),
            "http://localhost:8080/x".to_owned(),
            "a:b".to_owned(),
            "--".to_owned(),
            "-".to_owned(),
            "~nobody".to_owned(),
            "file:%zz".to_owned(),
            "-é".to_owned(),
            String::new(),
        ] {
            assert_eq!(check(&place, &argument), Ok(()), "{argument}");
        }
    }

    #[test]
    fn the_program_itself_is_not_looked_at() {
        let place = place();
        let protected = Protected::new([place.proxy.join("proxy.json")], place.home.clone(), None);
        let program = place.proxy.join("proxy.json").to_str().unwrap().to_owned();
        assert_eq!(protected.check("fs", &[program]), Ok(()));
        assert_eq!(protected.check("fs", &["x".to_owned(), "~/proxy".to_owned()]), Ok(()), "no home, no ~");
    }
}
