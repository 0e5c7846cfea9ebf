//! The compressed members of a fat binary.

use ruzstd::decoding::FrameDecoder;

/// Members that are larger than this when unpacked are not unpacked: their headers claim the size, and memory of the
/// program's is what they would cost. The largest cubins of NVIDIA's own libraries have some 30 MiB.
pub const LARGEST: u64 = 64 << 20;

/// Windows up to this size are accepted however small the contents: an encoder may not have known how small they are.
const USUAL_WINDOW: u64 = 8 << 20;

/// How a member is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// As it is.
    Plain,
    /// One block of LZ4: what the toolkit's `fatbinary` makes for `--compress-mode=speed`, and made before there was a choice.
    Lz4,
    /// One frame of Zstandard, for `balance`, which is the default since CUDA 13, and for `size`.
    Zstd,
}

/// Unpacks what claims to have `size` bytes. `None`: it is too large, or not what it claims to be. Takes twice that much memory
/// for as long as it lasts, whatever the bytes are.
pub fn unpack(packing: Packing, stored: &[u8], size: u64) -> Option<Vec<u8>> {
    let room = usize::try_from(size).ok().filter(|_| size <= LARGEST)?;
    let mut unpacked = Vec::new();
    unpacked.try_reserve_exact(room).ok()?;
    unpacked.resize(room, 0);
    let length = match packing {
        Packing::Plain => return None,
        Packing::Lz4 => lz4_flex::block::decompress_into(stored, &mut unpacked).ok()?,
        Packing::Zstd => {
            let mut decoder = FrameDecoder::new();
            decoder.set_max_window_size(size.max(USUAL_WINDOW));
            decoder.decode_all(stored, &mut unpacked).ok()?
        }
    };
    unpacked.truncate(length);
    Some(unpacked)
}
