//! Checks the code signature of a Mach-O file. Apple silicon runs only signed code, and compares the hash of every page.

use anyhow::{Context, Result, ensure};
use object::macho::{CS_HASHTYPE_SHA256, LC_CODE_SIGNATURE, MachHeader64};
use object::read::macho::{CodeDirectory, CodeSignature, LoadCommandVariant, MachHeader};
use object::{BigEndian, LittleEndian};
use sha2::{Digest, Sha256};

/// Fails unless the file has a signature with a SHA-256 hash of every page before it.
pub(super) fn check(data: &[u8]) -> Result<()> {
    let header = MachHeader64::<LittleEndian>::parse(data, 0)?;
    let endian = header.endian()?;
    let mut commands = header.load_commands(endian, data, 0)?;
    while let Some(command) = commands.next()? {
        if let LoadCommandVariant::LinkeditData(it) = command.variant()?
            && command.cmd() == LC_CODE_SIGNATURE
        {
            return check_pages(&it.code_signature(endian, data)?, data, it.dataoff.get(endian).into());
        }
    }
    anyhow::bail!("it has no signature")
}

/// Compares the hashes of a signature at `end` with the pages before it.
fn check_pages(signature: &CodeSignature<'_>, data: &[u8], end: u64) -> Result<()> {
    let mut directories = 0;
    for blob in signature.blobs() {
        if let Some(directory) = blob?.code_directory()? {
            check_directory(&directory, data, end)?;
            directories += 1;
        }
    }
    ensure!(directories > 0, "its signature has no hashes");
    Ok(())
}

fn check_directory(directory: &CodeDirectory<'_>, data: &[u8], end: u64) -> Result<()> {
    let header = directory.header();
    ensure!(header.hash_type == CS_HASHTYPE_SHA256, "its signature uses another hash than SHA-256");
    let limit = directory.code_limit();
    ensure!(limit == end, "its signature covers {limit} bytes of {end}");
    let code = data.get(..limit as usize).context("its signature covers more than the file")?;
    let size = 1_usize.checked_shl(header.page_size.into()).context("its signature has huge pages")?;
    let pages: Vec<&[u8]> = code.chunks(size).collect();
    let count = header.n_code_slots.get(BigEndian);
    ensure!(count as usize == pages.len(), "its signature has {count} hashes of {} pages", pages.len());
    for (index, page) in (0..count).zip(pages) {
        let hash = Sha256::digest(page);
        ensure!(directory.code_hash(index)? == hash.as_slice(), "page {index} differs from its signature");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;
    /// The sizes of the header of a signature with one entry, and of a code directory of the first version.
    const HEADERS: [usize; 2] = [20, 44];

    /// Returns the signature that `codesign` would write for `code`.
    fn sign(code: &[u8]) -> Vec<u8> {
        let hashes: Vec<_> = code.chunks(PAGE).map(Sha256::digest).collect();
        let length = HEADERS[1] + 32 * hashes.len();
        let words = [0xfade_0cc0, HEADERS[0] + length, 1, 0, HEADERS[0]];
        // The fields up to the limit of the code; the identifier is empty.
        let directory =
            [0xfade_0c02, length, 0x2_0000, 2, HEADERS[1], HEADERS[1] - 4, 0, hashes.len(), code.len()];
        let big = |word: usize| u32::try_from(word).expect("it is small").to_be_bytes();
        let mut bytes: Vec<u8> = words.into_iter().chain(directory).flat_map(big).collect();
        bytes.extend([32, CS_HASHTYPE_SHA256.0, 0, 12, 0, 0, 0, 0]);
        bytes.extend(hashes.iter().flatten());
        bytes
    }

    #[test]
    fn a_changed_page_or_a_shorter_range_is_found() {
        let code: Vec<u8> = (0..2 * PAGE + 100).map(|byte| (byte % 251) as u8).collect();
        let signature = sign(&code);
        let signature = CodeSignature::parse(&signature).expect("it is whole");
        let end = code.len() as u64;
        check_pages(&signature, &code, end).expect("nothing has changed");
        let mut changed = code.clone();
        changed[PAGE + 7] ^= 1;
        let error = check_pages(&signature, &changed, end).expect_err("a byte has changed").to_string();
        assert_eq!(error, "page 1 differs from its signature");
        let error = check_pages(&signature, &code, end + 1).expect_err("a byte is not covered").to_string();
        assert_eq!(error, "its signature covers 8292 bytes of 8293");
    }
}
