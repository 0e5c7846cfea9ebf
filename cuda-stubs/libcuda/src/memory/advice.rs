//! Hints about managed memory: where it should be, who uses it, and moving it ahead of use.

use std::ffi::c_void;
use std::ops::Range;

use sim_world::channel::Kind as Engine;

use super::copy::nanoseconds;
use super::managed::{Location, Pages, holding, touch_range};
use super::space::{Kind, Region};
use crate::abi::*;
use crate::api::{DefaultStream, In, Out, Outcome};
use crate::capture;
use crate::context::current;
use crate::lane::Piece;
use crate::process::process;
use crate::stream;

fn offsets(region: &Region, address: u64, len: u64) -> Range<u64> {
    address - region.base..address - region.base + len
}

fn advise(address: u64, len: u64, advice: u32, location: impl FnOnce() -> Outcome<Location>) -> Outcome {
    process()?;
    capture::forbid_unsafe()?;
    let region = holding(address, len)?;
    let Kind::Managed(managed) = &region.kind else { return Err(CUDA_ERROR_INVALID_VALUE) };
    // The location means nothing to the first two and to taking back a preference.
    let place = match advice {
        CU_MEM_ADVISE_SET_PREFERRED_LOCATION | CU_MEM_ADVISE_SET_ACCESSED_BY | CU_MEM_ADVISE_UNSET_ACCESSED_BY => {
            location()?
        }
        _ => Location::NONE,
    };
    let change: Box<dyn FnMut(&mut Pages)> = match advice {
        CU_MEM_ADVISE_SET_READ_MOSTLY => Box::new(|p| p.read_mostly = true),
        CU_MEM_ADVISE_UNSET_READ_MOSTLY => Box::new(|p| p.read_mostly = false),
        CU_MEM_ADVISE_SET_PREFERRED_LOCATION | CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION => {
            Box::new(|p| p.preferred = place)
        }
        CU_MEM_ADVISE_SET_ACCESSED_BY => Box::new(|p| {
            if !p.accessed_by.contains(&place) {
                p.accessed_by.push(place);
            }
        }),
        CU_MEM_ADVISE_UNSET_ACCESSED_BY => Box::new(|p| p.accessed_by.retain(|other| *other != place)),
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    managed.pages.lock().apply(offsets(&region, address, len), change);
    Ok(())
}

fn prefetch(address: u64, len: u64, place: Location, stream: CUstream, default: DefaultStream) -> Outcome {
    let stream = stream::resolve(stream, default)?;
    capture::forbid_on_stream(&stream)?;
    capture::forbid_unsafe()?;
    let region = holding(address, len)?;
    let Kind::Managed(managed) = &region.kind else { return Err(CUDA_ERROR_INVALID_VALUE) };
    managed.pages.lock().apply(offsets(&region, address, len), |p| p.prefetched = place);
    let to = place.gpu();
    let moved = match to {
        Some(gpu) => touch_range(gpu, address, len),
        None => len, // the bytes come back; their place on the GPU stays taken until they are freed
    };
    let lane = stream.lane()?;
    let kind = if to.is_some() { Engine::CopyIn } else { Engine::CopyOut };
    let piece =
        Piece { kind, priority: stream.rank(), ..Piece::filling(nanoseconds(moved, lane.world.settings().copy_rate)) };
    lane.submit(stream.queue, stream.order, piece, &[]);
    Ok(())
}

/// One attribute of a range: the words that the answer is made of, `room` of them at most.
fn range_attribute(attribute: u32, address: u64, len: u64, room: usize) -> Outcome<Vec<i32>> {
    let region = holding(address, len)?;
    let Kind::Managed(managed) = &region.kind else { return Err(CUDA_ERROR_INVALID_VALUE) };
    let pages = managed.pages.lock();
    let all: Vec<&Pages> = pages.within(offsets(&region, address, len)).map(|(_, page)| page).collect();
    // A place counts only if all pages of the range have it.
    let common = |read: fn(&Pages) -> Location| {
        let first = all.first().map_or(Location::NONE, |p| read(p));
        if all.iter().all(|p| read(p) == first) { first } else { Location::NONE }
    };
    let (preferred, prefetched) = (common(|p| p.preferred), common(|p| p.prefetched));
    let one = |value: i32| if room == 1 { Ok(vec![value]) } else { Err(CUDA_ERROR_INVALID_VALUE) };
    match attribute {
        CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY => one(i32::from(all.iter().all(|p| p.read_mostly))),
        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION => one(preferred.device_number()),
        CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION => one(prefetched.device_number()),
        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE => one(preferred.kind as i32),
        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID => one(preferred.id),
        CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE => one(prefetched.kind as i32),
        CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID => one(prefetched.id),
        CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY => {
            let by = all.first().map_or(&[][..], |p| &p.accessed_by);
            let by = by
                .iter()
                .filter(|place| all.iter().all(|p| p.accessed_by.contains(place)))
                .map(|place| place.device_number());
            Ok(by.chain(std::iter::repeat(CU_DEVICE_INVALID)).take(room).collect())
        }
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

fn answer(data: Out<i32>, bytes: usize, attribute: u32, address: u64, len: usize) -> Outcome {
    data.required()?;
    if bytes == 0 || !bytes.is_multiple_of(4) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let words = range_attribute(attribute, address, len as u64, bytes / 4)?;
    for (index, word) in words.into_iter().enumerate() {
        data.set_at(index, word);
    }
    Ok(())
}

/// The ranges that a call for several is given: address and length of each.
fn several(pointers: In<CUdeviceptr>, sizes: In<usize>, count: usize, flags: u64) -> Outcome<Vec<(u64, u64)>> {
    process()?;
    if count == 0 || flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(pointers.array(count)?.into_iter().zip(sizes.array(count)?.into_iter().map(|size| size as u64)).collect())
}

/// The places that it is given: each with the index of the first range that it is for.
fn places(places: In<CUmemLocation>, starts: In<usize>, count: usize) -> Outcome<Vec<(usize, Location)>> {
    let starts = starts.array(count)?;
    if starts.first() != Some(&0) || !starts.is_sorted() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    starts.into_iter().zip(places.array(count)?).map(|(start, place)| Ok((start, Location::of(place)?))).collect()
}

fn prefetch_all(
    ranges: &[(u64, u64)],
    places: &[(usize, Location)],
    stream: CUstream,
    default: DefaultStream,
) -> Outcome {
    if places.len() > ranges.len() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    for (index, (address, len)) in ranges.iter().enumerate() {
        let which = places.partition_point(|(start, _)| *start <= index) - 1; // the first is for 0
        prefetch(*address, *len, places[which].1, stream, default)?;
    }
    Ok(())
}

/// What is in managed memory need not be kept. It is all the same here: the place on the GPU stays taken.
fn discard_all(ranges: &[(u64, u64)], stream: CUstream, default: DefaultStream) -> Outcome {
    stream::resolve(stream, default)?;
    ranges.iter().try_for_each(|(address, len)| holding(*address, *len).map(|_| ()))
}

api! {
    export fn cuMemAdvise(pointer: CUdeviceptr, bytes: usize, advice: CUmem_advise, dev: CUdevice) {
        advise(pointer, bytes as u64, advice, || Location::of_device(dev))
    }
    export fn cuMemAdvise_v2(pointer: CUdeviceptr, bytes: usize, advice: CUmem_advise, place: CUmemLocation) {
        advise(pointer, bytes as u64, advice, || Location::of(place))
    }
    export fn cuMemPrefetchAsync | cuMemPrefetchAsync_ptsz(default; pointer: CUdeviceptr, bytes: usize, dev: CUdevice, stream: CUstream) {
        prefetch(pointer, bytes as u64, Location::of_device(dev)?, stream, default)
    }
    export fn cuMemPrefetchAsync_v2 | cuMemPrefetchAsync_v2_ptsz(default; pointer: CUdeviceptr, bytes: usize, place: CUmemLocation, flags: u32, stream: CUstream) {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        process()?;
        prefetch(pointer, bytes as u64, Location::of(place)?, stream, default)
    }
    export fn cuMemPrefetchBatchAsync | cuMemPrefetchBatchAsync_ptsz(default; pointers: In<CUdeviceptr>, sizes: In<usize>, count: usize,
        locations: In<CUmemLocation>, starts: In<usize>, place_count: usize, flags: u64, stream: CUstream) {
        prefetch_all(&several(pointers, sizes, count, flags)?, &places(locations, starts, place_count)?, stream, default)
    }
    export fn cuMemDiscardBatchAsync | cuMemDiscardBatchAsync_ptsz(default; pointers: In<CUdeviceptr>, sizes: In<usize>, count: usize,
        flags: u64, stream: CUstream) {
        discard_all(&several(pointers, sizes, count, flags)?, stream, default)
    }
    export fn cuMemDiscardAndPrefetchBatchAsync | cuMemDiscardAndPrefetchBatchAsync_ptsz(default; pointers: In<CUdeviceptr>, sizes: In<usize>, count: usize,
        locations: In<CUmemLocation>, starts: In<usize>, place_count: usize, flags: u64, stream: CUstream) {
        let ranges = several(pointers, sizes, count, flags)?;
        discard_all(&ranges, stream, default)?;
        prefetch_all(&ranges, &places(locations, starts, place_count)?, stream, default)
    }
    export fn cuMemRangeGetAttribute(data: Out<i32>, bytes: usize, attribute: CUmem_range_attribute, pointer: CUdeviceptr, len: usize) {
        process()?;
        answer(data, bytes, attribute, pointer, len)
    }
    export fn cuMemRangeGetAttributes(data: In<*mut c_void>, sizes: In<usize>, attributes: In<CUmem_range_attribute>, count: usize,
        pointer: CUdeviceptr, len: usize) {
        process()?;
        if count == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        for ((to, size), attribute) in data.array(count)?.iter().zip(sizes.array(count)?).zip(attributes.array(count)?) {
            answer(Out::from_ptr(to.cast()), size, attribute, pointer, len)?;
        }
        Ok(())
    }
    export fn cuStreamAttachMemAsync | cuStreamAttachMemAsync_ptsz(default; stream: CUstream, pointer: CUdeviceptr, len: usize, flags: u32) {
        current()?;
        capture::forbid_on_stream(&stream::resolve(stream, default)?)?;
        capture::forbid_unsafe()?;
        let region = holding(pointer, 1)?;
        let whole = pointer == region.base && (len == 0 || len as u64 == region.len);
        if !whole || !matches!(flags, CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST | CU_MEM_ATTACH_SINGLE) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(()) // who may touch it when is the client's promise; nothing here depends on it
    }
}
