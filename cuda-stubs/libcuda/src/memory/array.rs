//! Arrays and mipmapped arrays: what they take, and where their rows are.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use sim_world::Path;

use super::address::GRANULE;
use super::backing::Backing;
use super::blocks::{ABSURD, Block, Heaps};
use super::charge::Charge;
use super::copy::End;
use super::linear::wait_for_context;
use super::space::Span;
use crate::abi::*;
use crate::api::{In, Out, Outcome};
use crate::context::{Context, current};
use crate::handles::{Registry, Tag};
use crate::process::process;

pub(crate) static ARRAYS: Registry<Array> = Registry::new(Tag::Array);
pub(crate) static MIPMAPS: Registry<Mipmap> = Registry::new(Tag::Mipmap);
static HEAPS: Heaps<()> = Heaps::new();
/// Arrays have no addresses; their blocks are told apart by numbers that look like some.
static NEXT_BASE: AtomicU64 = AtomicU64::new(GRANULE);

/// The shape and format of an array.
pub(crate) type ArrayForm = CUDA_ARRAY3D_DESCRIPTOR;

pub(crate) struct Array {
    pub handle: usize,
    context: usize,
    pub form: ArrayForm,
    element: u64,
    /// None for arrays that get their memory by mapping.
    storage: Option<Arc<Storage>>,
    /// Where in the storage it begins; not 0 for levels of a mipmap.
    start: u64,
    is_level: bool,
}

pub(crate) struct Mipmap {
    pub handle: usize,
    context: usize,
    pub form: ArrayForm,
    element: u64,
    levels: u32,
    storage: Option<Arc<Storage>>,
    made: Mutex<HashMap<u32, Arc<Array>>>,
}

/// A piece of a heap, given back when dropped.
struct Storage {
    context: usize,
    block: Arc<Block>,
    at: u64,
    bytes: u64,
}

impl Drop for Storage {
    fn drop(&mut self) {
        HEAPS.with(self.context, (), |heap| heap.release(&self.block, self.at, self.bytes));
    }
}

impl Storage {
    fn new(context: &Context, bytes: u64) -> Outcome<Arc<Storage>> {
        let gpu = context.device.gpu;
        let make = |len| {
            let charge = Charge::take(gpu, Path::Array, len)?;
            let base = NEXT_BASE.fetch_add(len, Ordering::Relaxed);
            Ok(Block::new(base, len, Arc::new(Backing::new(len)), Some(charge), None))
        };
        let (at, block) = HEAPS.with(context.handle, (), |heap| heap.allocate(bytes, make))?;
        Ok(Arc::new(Storage { context: context.handle, block, at, bytes }))
    }
}

/// Bytes of an element, for formats whose elements stand alone.
pub(crate) fn element_bytes(format: u32, channels: u32) -> Outcome<u64> {
    let each = match format {
        CU_AD_FORMAT_UNSIGNED_INT8 | CU_AD_FORMAT_SIGNED_INT8 => 1,
        CU_AD_FORMAT_UNSIGNED_INT16 | CU_AD_FORMAT_SIGNED_INT16 | CU_AD_FORMAT_HALF => 2,
        CU_AD_FORMAT_UNSIGNED_INT32 | CU_AD_FORMAT_SIGNED_INT32 | CU_AD_FORMAT_FLOAT => 4,
        CU_AD_FORMAT_UNORM_INT8X1 | CU_AD_FORMAT_SNORM_INT8X1 if channels == 1 => 1,
        CU_AD_FORMAT_UNORM_INT8X2 | CU_AD_FORMAT_SNORM_INT8X2 if channels == 2 => 1,
        CU_AD_FORMAT_UNORM_INT8X4 | CU_AD_FORMAT_SNORM_INT8X4 if channels == 4 => 1,
        CU_AD_FORMAT_UNORM_INT16X1 | CU_AD_FORMAT_SNORM_INT16X1 if channels == 1 => 2,
        CU_AD_FORMAT_UNORM_INT16X2 | CU_AD_FORMAT_SNORM_INT16X2 if channels == 2 => 2,
        CU_AD_FORMAT_UNORM_INT16X4 | CU_AD_FORMAT_SNORM_INT16X4 if channels == 4 => 2,
        CU_AD_FORMAT_BC1_UNORM..=CU_AD_FORMAT_YUV444_16bit_SemiPlanar => {
            return Err(unmodelled!("an array of blocks or planes (format {format:#x})"));
        }
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    if matches!(channels, 1 | 2 | 4) { Ok(each * u64::from(channels)) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

/// Width, height and depth in elements, none of them 0.
fn extents(form: &ArrayForm) -> [u64; 3] {
    [form.Width as u64, (form.Height as u64).max(1), (form.Depth as u64).max(1)]
}

/// The most that the H200 takes: for lines, planes, boxes, and each of them in layers.
fn check_shape(form: &ArrayForm) -> Outcome {
    let known = CUDA_ARRAY3D_LAYERED
        | CUDA_ARRAY3D_SURFACE_LDST
        | CUDA_ARRAY3D_CUBEMAP
        | CUDA_ARRAY3D_TEXTURE_GATHER
        | CUDA_ARRAY3D_DEPTH_TEXTURE
        | CUDA_ARRAY3D_COLOR_ATTACHMENT
        | CUDA_ARRAY3D_SPARSE
        | CUDA_ARRAY3D_DEFERRED_MAPPING
        | CUDA_ARRAY3D_VIDEO_ENCODE_DECODE;
    let layered = form.Flags & CUDA_ARRAY3D_LAYERED != 0;
    let cubemap = form.Flags & CUDA_ARRAY3D_CUBEMAP != 0;
    let most = match (form.Height, form.Depth) {
        _ if cubemap => [32_768, 32_768, if layered { 2046 } else { 6 }],
        (0, _) if layered => [32_768, 0, 2048],
        _ if layered => [32_768, 32_768, 2048],
        (0, 0) => [131_072, 0, 0],
        (_, 0) => [131_072, 65_536, 0],
        _ => [16_384, 16_384, 16_384],
    };
    let sizes = [form.Width, form.Height, form.Depth];
    let odd_cube = cubemap && (form.Width != form.Height || form.Depth == 0 || !form.Depth.is_multiple_of(6));
    let bad = form.Width == 0
        || form.Flags & !known != 0
        || (layered && form.Depth == 0)
        || odd_cube
        || sizes.iter().zip(most).any(|(size, most)| *size > most);
    if bad { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
}

fn bytes_of(form: &ArrayForm, element: u64) -> u64 {
    extents(form).iter().product::<u64>() * element
}

/// What the device takes for it: rows lie in tiles of 64 bytes by 8 rows, and tiles in stacks of up to 16.
fn footprint(form: &ArrayForm, element: u64) -> u64 {
    let [width, height, depth] = extents(form);
    let stack = height.div_ceil(8).next_power_of_two().min(16) * 8;
    (width * element).next_multiple_of(64) * height.next_multiple_of(stack) * depth
}

/// The shape of a level: each side halved so often, layers excepted.
fn level_form(form: &ArrayForm, level: u32) -> ArrayForm {
    let halved = |size: usize| if size == 0 { 0 } else { (size >> level).max(1) };
    let layered = form.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0;
    let depth = if layered { form.Depth } else { halved(form.Depth) };
    ArrayForm { Width: halved(form.Width), Height: halved(form.Height), Depth: depth, ..*form }
}

/// Whether its memory comes by mapping.
fn is_unbacked(form: &ArrayForm) -> bool {
    form.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) != 0
}

impl Array {
    fn create(form: ArrayForm) -> Outcome<Arc<Array>> {
        let context = current()?;
        crate::capture::forbid_unsafe()?;
        let element = element_bytes(form.Format, form.NumChannels)?;
        check_shape(&form)?;
        let storage = if is_unbacked(&form) { None } else { Some(Storage::new(&context, footprint(&form, element))?) };
        Ok(ARRAYS.insert_with(|handle| Array {
            handle,
            context: context.handle,
            form,
            element,
            storage,
            start: 0,
            is_level: false,
        }))
    }

    pub(crate) fn element_bytes(&self) -> u64 {
        self.element
    }

    /// Bytes of a row.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.form.Width as u64 * self.element
    }

    /// The bytes of a box in the array: span, where in it the box begins, and the steps from row to row and slice to slice.
    pub(crate) fn rows(&self, end: &End, [width, height, depth]: [u64; 3]) -> Outcome<(Span, u64, u64, u64)> {
        let [_, rows, slices] = extents(&self.form);
        let pitch = self.row_bytes();
        let inside = |from: u64, len: u64, all: u64| from.checked_add(len).is_some_and(|to| to <= all);
        if !inside(end.x, width, pitch) || !inside(end.y, height, rows) || !inside(end.z, depth, slices) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let storage = self.storage.as_ref().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let offset = storage.at - storage.block.base + self.start;
        let span = Span::backed(&storage.block.backing, offset, bytes_of(&self.form, self.element));
        let slice = pitch * rows;
        Ok((span, end.z * slice + end.y * pitch + end.x, pitch, slice))
    }
}

impl Mipmap {
    fn create(form: ArrayForm, levels: u32) -> Outcome<Arc<Mipmap>> {
        let context = current()?;
        crate::capture::forbid_unsafe()?;
        let element = element_bytes(form.Format, form.NumChannels)?;
        check_shape(&form)?;
        let layered = form.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0;
        let longest = form.Width.max(form.Height).max(if layered { 0 } else { form.Depth });
        let levels = levels.clamp(1, longest.ilog2() + 1);
        let bytes: u64 = (0..levels).map(|level| footprint(&level_form(&form, level), element)).sum();
        if bytes > ABSURD {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let storage = if is_unbacked(&form) { None } else { Some(Storage::new(&context, bytes)?) };
        let made = Mutex::default();
        Ok(MIPMAPS.insert_with(|handle| Mipmap {
            handle,
            context: context.handle,
            form,
            element,
            levels,
            storage,
            made,
        }))
    }

    fn level(&self, level: u32) -> Outcome<Arc<Array>> {
        if level >= self.levels {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut made = self.made.lock();
        let start = (0..level).map(|l| bytes_of(&level_form(&self.form, l), self.element)).sum();
        let array = made.entry(level).or_insert_with(|| {
            let (context, form, element) = (self.context, level_form(&self.form, level), self.element);
            let storage = self.storage.clone();
            ARRAYS.insert_with(|handle| Array { handle, context, form, element, storage, start, is_level: true })
        });
        Ok(Arc::clone(array))
    }
}

/// The array that a handle names.
pub(crate) fn get(handle: CUarray) -> Outcome<Arc<Array>> {
    process()?;
    ARRAYS.get(handle as usize).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

/// The mipmapped array that a handle names.
pub(crate) fn get_mipmap(handle: CUmipmappedArray) -> Outcome<Arc<Mipmap>> {
    process()?;
    MIPMAPS.get(handle as usize).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

/// A context is gone, and with it its arrays.
pub(crate) fn forget_context(context: &Context) {
    drop(MIPMAPS.remove_all(|mipmap| mipmap.context == context.handle));
    drop(ARRAYS.remove_all(|array| array.context == context.handle));
    HEAPS.forget(context.handle);
}

fn destroy(handle: CUarray) -> Outcome {
    let array = get(handle)?;
    if array.is_level {
        return Ok(()); // it goes with its mipmap
    }
    crate::capture::forbid_unsafe()?;
    wait_for_context(array.context)?;
    ARRAYS.remove(array.handle).map(|_| ()).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

fn destroy_mipmap(handle: CUmipmappedArray) -> Outcome {
    let mipmap = get_mipmap(handle)?;
    crate::capture::forbid_unsafe()?;
    wait_for_context(mipmap.context)?;
    MIPMAPS.remove(mipmap.handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    for level in mipmap.made.lock().drain() {
        ARRAYS.remove(level.1.handle);
    }
    Ok(())
}

/// What an array that gets its memory by mapping needs of it; others have theirs.
fn requirements(form: &ArrayForm, bytes: u64) -> Outcome<CUDA_ARRAY_MEMORY_REQUIREMENTS> {
    const PAGE: u64 = 64 << 10;
    if form.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(CUDA_ARRAY_MEMORY_REQUIREMENTS {
        size: bytes.next_multiple_of(PAGE) as usize,
        alignment: PAGE as usize,
        ..Default::default()
    })
}

fn flat(width: usize, height: usize, format: CUarray_format, channels: u32) -> ArrayForm {
    ArrayForm { Width: width, Height: height, Depth: 0, Format: format, NumChannels: channels, Flags: 0 }
}

api! {
    export fn cuArrayCreate_v2(array: Out<CUarray>, form: In<CUDA_ARRAY_DESCRIPTOR>) {
        let form = form.get()?;
        array.required()?;
        array.set(Array::create(flat(form.Width, form.Height, form.Format, form.NumChannels))?.handle as CUarray)
    }
    export fn cuArrayCreate(array: Out<CUarray>, form: In<CUDA_ARRAY_DESCRIPTOR_v1>) {
        let form = form.get()?;
        array.required()?;
        array.set(Array::create(flat(form.Width as usize, form.Height as usize, form.Format, form.NumChannels))?.handle as CUarray)
    }
    export fn cuArray3DCreate_v2(array: Out<CUarray>, form: In<CUDA_ARRAY3D_DESCRIPTOR>) {
        array.required()?;
        array.set(Array::create(form.get()?)?.handle as CUarray)
    }
    export fn cuArray3DCreate(array: Out<CUarray>, form: In<CUDA_ARRAY3D_DESCRIPTOR_v1>) {
        let form = form.get()?;
        array.required()?;
        let wide = ArrayForm {
            Width: form.Width as usize,
            Height: form.Height as usize,
            Depth: form.Depth as usize,
            Format: form.Format,
            NumChannels: form.NumChannels,
            Flags: form.Flags,
        };
        array.set(Array::create(wide)?.handle as CUarray)
    }
    export fn cuArrayDestroy(array: CUarray) { destroy(array) }
    export fn cuArrayGetDescriptor_v2(form: Out<CUDA_ARRAY_DESCRIPTOR>, array: CUarray) {
        let of = get(array)?.form;
        form.set(CUDA_ARRAY_DESCRIPTOR { Width: of.Width, Height: of.Height, Format: of.Format, NumChannels: of.NumChannels })
    }
    export fn cuArrayGetDescriptor(form: Out<CUDA_ARRAY_DESCRIPTOR_v1>, array: CUarray) {
        let of = get(array)?.form;
        form.set(CUDA_ARRAY_DESCRIPTOR_v1 { Width: of.Width as u32, Height: of.Height as u32, Format: of.Format, NumChannels: of.NumChannels })
    }
    export fn cuArray3DGetDescriptor_v2(form: Out<CUDA_ARRAY3D_DESCRIPTOR>, array: CUarray) { form.set(get(array)?.form) }
    export fn cuArray3DGetDescriptor(form: Out<CUDA_ARRAY3D_DESCRIPTOR_v1>, array: CUarray) {
        let of = get(array)?.form;
        form.set(CUDA_ARRAY3D_DESCRIPTOR_v1 {
            Width: of.Width as u32,
            Height: of.Height as u32,
            Depth: of.Depth as u32,
            Format: of.Format,
            NumChannels: of.NumChannels,
            Flags: of.Flags,
        })
    }
    export fn cuArrayGetMemoryRequirements(needs: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS>, array: CUarray, dev: CUdevice) {
        process()?.device(dev)?;
        let array = get(array)?;
        needs.set(requirements(&array.form, footprint(&array.form, array.element))?)
    }
    export fn cuMipmappedArrayCreate(mipmap: Out<CUmipmappedArray>, form: In<CUDA_ARRAY3D_DESCRIPTOR>, levels: u32) {
        mipmap.required()?;
        mipmap.set(Mipmap::create(form.get()?, levels)?.handle as CUmipmappedArray)
    }
    export fn cuMipmappedArrayGetLevel(array: Out<CUarray>, mipmap: CUmipmappedArray, level: u32) {
        array.set(get_mipmap(mipmap)?.level(level)?.handle as CUarray)
    }
    export fn cuMipmappedArrayDestroy(mipmap: CUmipmappedArray) { destroy_mipmap(mipmap) }
    export fn cuMipmappedArrayGetMemoryRequirements(needs: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS>, mipmap: CUmipmappedArray, dev: CUdevice) {
        process()?.device(dev)?;
        let mipmap = get_mipmap(mipmap)?;
        let bytes = (0..mipmap.levels).map(|level| footprint(&level_form(&mipmap.form, level), mipmap.element)).sum();
        needs.set(requirements(&mipmap.form, bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measured_shapes_take_what_was_measured() {
        let float4 =
            ArrayForm { Width: 1024, Height: 1024, Depth: 0, Format: CU_AD_FORMAT_FLOAT, NumChannels: 4, Flags: 0 };
        let element = element_bytes(CU_AD_FORMAT_FLOAT, 4).expect("a format");
        let mipmap: u64 = (0..11).map(|level| footprint(&level_form(&float4, level), element)).sum();
        assert_eq!(mipmap.next_multiple_of(GRANULE) >> 20, 22);
        let cube = ArrayForm { Width: 128, Height: 128, Depth: 128, ..float4 };
        assert_eq!(footprint(&cube, element) >> 20, 32);
        assert_eq!(footprint(&flat(1500, 700, CU_AD_FORMAT_FLOAT, 1), 4).next_multiple_of(GRANULE) >> 20, 6);
        assert_eq!(footprint(&flat(1000, 1000, CU_AD_FORMAT_FLOAT, 1), 4), 4_128_768);
    }

    #[test]
    fn shapes_that_no_gpu_has_are_refused() {
        let good = ArrayForm { Width: 16, Height: 16, Depth: 0, Format: CU_AD_FORMAT_FLOAT, NumChannels: 1, Flags: 0 };
        assert!(check_shape(&good).is_ok());
        for bad in [
            ArrayForm { Width: 0, ..good },
            ArrayForm { Width: 1 << 20, ..good },
            ArrayForm { Flags: CUDA_ARRAY3D_LAYERED, ..good },
            ArrayForm { Flags: CUDA_ARRAY3D_CUBEMAP, Depth: 5, ..good },
            ArrayForm { Depth: 20_000, ..good },
        ] {
            assert_eq!(check_shape(&bad), Err(CUDA_ERROR_INVALID_VALUE));
        }
        assert!(element_bytes(CU_AD_FORMAT_FLOAT, 3).is_err());
    }
}
