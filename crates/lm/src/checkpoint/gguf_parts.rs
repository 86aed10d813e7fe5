//! GGUF models in several files, `NAME-00001-of-00003.gguf` and so on.
//!
//! Owns finding the parts by name and joining their tensors; the first part has the metadata. Refuses a set that is not
//! whole, and parts of another.

use super::gguf::Gguf;
use super::source::{Bytes, Folder};
use crate::{Error, Result};

/// The most parts of a model: the format counts them in 16 bits, and nobody has a tenth of this.
const MOST_PARTS: u64 = 4096;

/// What a part's name says: the name of the model, which part, of how many.
fn spelled(name: &str) -> Option<(&str, u64, u64)> {
    let stem = name.strip_suffix(".gguf")?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (model, part) = rest.rsplit_once('-')?;
    let number = |digits: &str| {
        let five = digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit());
        if five { digits.parse::<u64>().ok() } else { None }
    };
    Some((model, number(part)?, number(count)?))
}

/// Of each set of parts only the first name in this sorted list.
pub(super) fn one_of_each(names: &mut Vec<String>) {
    let mut last: Option<(String, u64)> = None;
    names.retain(|name| {
        let set = spelled(name).map(|(model, _, count)| (model.to_owned(), count));
        let again = set.is_some() && set == last;
        last = set;
        !again
    });
}

/// All parts of the model of which the file `name` of `folder` is one.
///
/// # Errors
/// `File` if a part is missing, is damaged or belongs to another set.
pub(super) fn read(folder: &Folder, name: &str, bytes: Bytes) -> Result<(Gguf, Vec<Bytes>)> {
    let gguf = Gguf::parse(&bytes)?;
    let count = gguf.uint("split.count")?.unwrap_or(1);
    if count <= 1 {
        return Ok((gguf, vec![bytes]));
    }
    let spelled = spelled(name).filter(|(_, _, said)| *said == count && count <= MOST_PARTS);
    let Some((model, ..)) = spelled else {
        let what = format!("the file is one of {count} parts of a model");
        let wanted = format!("name the parts NAME-00001-of-{count:05}.gguf and so on");
        return Err(Error::file(what).hint(format!("{wanted}, or merge them into one file")));
    };
    let mut joined: Option<Gguf> = None;
    let mut shards = Vec::new();
    for part in 0..count {
        let name = format!("{model}-{:05}-of-{count:05}.gguf", part + 1);
        let (gguf, bytes) = open(folder, &name, [part, count]).map_err(|e| e.at(&name))?;
        match &mut joined {
            None => joined = Some(gguf),
            Some(all) => all.join(gguf, shards.len()).map_err(|e| e.at(&name))?,
        }
        shards.push(bytes);
    }
    let joined = joined.ok_or_else(|| Error::file("a model of no parts"))?;
    let (wanted, have) = (joined.uint("split.tensors.count")?, joined.tensors().len() as u64);
    if wanted.is_some_and(|wanted| wanted != have) {
        let what = format!("all {count} parts have {have} tensors, not {wanted:?}");
        return Err(Error::file(what).hint("the parts are of different downloads"));
    }
    Ok((joined, shards))
}

fn open(folder: &Folder, name: &str, [part, count]: [u64; 2]) -> Result<(Gguf, Bytes)> {
    let bytes = folder.map(name).map_err(|e| e.hint(format!("all {count} parts are needed")))?;
    let gguf = Gguf::parse(&bytes)?;
    let said = (gguf.uint("split.no")?, gguf.uint("split.count")?);
    if said != (Some(part), Some(count)) {
        let what = format!("it says of itself {said:?}, not part {part} of {count}");
        return Err(Error::file(what).hint("the parts are of different downloads, or renamed"));
    }
    Ok((gguf, bytes))
}

#[cfg(test)]
mod tests {
    use super::{one_of_each, spelled};

    #[test]
    fn names_of_parts_are_read_strictly() {
        assert_eq!(spelled("a-b-00002-of-00003.gguf"), Some(("a-b", 2, 3)));
        for other in ["a-2-of-3.gguf", "a-00002-of-+0003.gguf", "a-00002-of-00003.bin", "a.gguf"] {
            assert_eq!(spelled(other), None, "{other}");
        }
        let mut names: Vec<String> =
            ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "b-00002-of-00002.gguf", "c.gguf"]
                .map(String::from)
                .into();
        one_of_each(&mut names);
        assert_eq!(names, ["a-00001-of-00002.gguf", "b-00002-of-00002.gguf", "c.gguf"]);
    }
}
