//! Kernel images: a text form of our own that says what a kernel costs, since a simulated GPU cannot run machine code; and
//! PTX, of which `ptx` reads as much as is needed.
//!
//! ```text
//! ration-sim-image 1
//! # a comment
//! global table 67108864
//! kernel step time=500us local=16384 shared=1024 regs=32 threads=1024 param=8,4 width=25% heap touch sets=0:1
//! ```
//! `time` may be `@N`: nanoseconds taken from parameter N, an 8-byte integer. `docs/simulated-gpu.md` has the manual.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Arc;

use crate::abi::{CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_VALUE};
use crate::api::Outcome;
use crate::ptx;

const FIRST_LINE: &str = "ration-sim-image 1";
/// What `__cudaRegisterFatBinary` is given: magic, version, pointer to the image.
const FATBIN_WRAPPER: u32 = 0x4662_43b1;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Image {
    /// Name and bytes.
    pub globals: Vec<(String, u64)>,
    pub kernels: Vec<Arc<KernelImage>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KernelImage {
    pub name: CString,
    pub time: Time,
    /// Local memory per thread.
    pub local: u64,
    /// Static shared memory per block.
    pub shared: u32,
    pub registers: u32,
    pub max_threads: u32,
    /// Offset and size of each parameter.
    pub params: Vec<(usize, usize)>,
    /// Part of the GPU it fills, in thousandths.
    pub width: u16,
    /// Uses the device-side heap.
    pub heap: bool,
    /// Touches the managed memory that its 8-byte parameters point to.
    pub touch: bool,
    /// Sets the conditional handle in a parameter to a value; -1 counts it down.
    pub sets: Option<(usize, i64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Time {
    Fixed(u64),
    Parameter(usize),
}

impl KernelImage {
    /// Bytes of all parameters.
    pub(crate) fn param_bytes(&self) -> usize {
        self.params.last().map_or(0, |(offset, size)| offset + size)
    }

    /// Whether a launch has to look at its parameters at all.
    pub(crate) fn reads_params(&self) -> bool {
        self.touch || self.sets.is_some() || matches!(self.time, Time::Parameter(_))
    }
}

impl Image {
    /// Reads what a client handed to a load function.
    pub(crate) fn from_pointer(image: *const c_void) -> Outcome<Image> {
        if image.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut start = image.cast::<u8>();
        // SAFETY: an image of any known kind has at least four bytes, and a wrapper the sixteen read here.
        unsafe {
            if start.cast::<u32>().read_unaligned() == FATBIN_WRAPPER {
                start = start.add(8).cast::<*const u8>().read_unaligned();
            }
            let looks_ours = FIRST_LINE.bytes().enumerate().all(|(i, byte)| {
                // Stops at the first difference, so it never reads past the end of something shorter.
                *start.add(i) == byte
            });
            // Every form that is longer than this one begins with bytes that are no text.
            let is_text = (0..4).all(|i| (*start.add(i)).is_ascii() && *start.add(i) != 0 && *start != 0x7f);
            if !looks_ours && !is_text {
                return Err(unmodelled!("real device code (a cubin or fatbin image)"));
            }
            let text = CStr::from_ptr(start.cast::<c_char>());
            if looks_ours {
                Image::from_text(&text.to_string_lossy())
            } else if ptx::is_for_us(text.to_bytes()) {
                ptx::read(&text.to_string_lossy()).map_err(|why| {
                    eprintln!("ration-sim: kernel image in PTX: {why}");
                    CUDA_ERROR_INVALID_IMAGE
                })
            } else {
                Err(unmodelled!("real device code (a cubin, fatbin or PTX image)"))
            }
        }
    }

    /// Adds a kernel with the attributes of the text form.
    pub(crate) fn add_kernel<'a>(
        &mut self,
        name: &str,
        attributes: impl Iterator<Item = &'a str>,
    ) -> Result<(), String> {
        self.kernels.push(Arc::new(kernel(name, attributes)?));
        Ok(())
    }

    /// Reads the text form; an error is said with its line.
    pub(crate) fn from_text(text: &str) -> Outcome<Image> {
        parse(text).map_err(|(line, why)| {
            eprintln!("ration-sim: kernel image, line {line}: {why}");
            CUDA_ERROR_INVALID_IMAGE
        })
    }

    /// Where a kernel of this name stands.
    pub(crate) fn kernel_index(&self, name: &CStr) -> Option<usize> {
        self.kernels.iter().position(|k| k.name.as_c_str() == name)
    }
}

type Fault = (usize, String);

fn parse(text: &str) -> Result<Image, Fault> {
    let mut image = Image::default();
    for (number, line) in text.lines().enumerate() {
        let fault = |why: String| (number + 1, why);
        let line = line.split('#').next().unwrap_or_default().trim();
        let mut words = line.split_whitespace();
        match words.next() {
            None => {}
            Some("ration-sim-image") if words.next() == Some("1") => {}
            Some("ration-sim-image") => return Err(fault(format!("only version 1 is known: {FIRST_LINE:?}"))),
            Some("global") => match (words.next(), words.next().and_then(|w| w.parse().ok()), words.next()) {
                (Some(name), Some(bytes), None) => image.globals.push((name.to_owned(), bytes)),
                _ => return Err(fault("a global is `global NAME BYTES`".into())),
            },
            Some("kernel") => {
                let name = words.next().ok_or_else(|| fault("a kernel is `kernel NAME attribute…`".into()))?;
                image.add_kernel(name, words).map_err(fault)?;
            }
            Some(other) => return Err(fault(format!("{other:?} is neither `kernel` nor `global`"))),
        }
    }
    Ok(image)
}

fn kernel<'a>(name: &str, attributes: impl Iterator<Item = &'a str>) -> Result<KernelImage, String> {
    let mut kernel = KernelImage {
        name: CString::new(name).map_err(|e| e.to_string())?,
        time: Time::Fixed(0),
        local: 0,
        shared: 0,
        registers: 16,
        max_threads: 1024,
        params: Vec::new(),
        width: sim_world::channel::WHOLE,
        heap: false,
        touch: false,
        sets: None,
    };
    for attribute in attributes {
        let (key, value) = attribute.split_once('=').unwrap_or((attribute, ""));
        let bad = || format!("{attribute:?}: see docs/simulated-gpu.md for what {key} takes");
        let number = || value.parse::<u32>().map_err(|_| bad());
        match key {
            "time" => kernel.time = time(value).ok_or_else(bad)?,
            "local" => kernel.local = u64::from(number()?),
            "shared" => kernel.shared = number()?,
            "regs" => kernel.registers = number()?,
            "threads" => kernel.max_threads = number()?.clamp(1, 1024),
            "param" => {
                for size in value.split(',') {
                    let size = size.parse().ok().filter(|s| (1..=4096).contains(s)).ok_or_else(bad)?;
                    let align = usize::min(size, 8).next_power_of_two();
                    let offset = kernel.param_bytes().next_multiple_of(align);
                    kernel.params.push((offset, size));
                }
            }
            "width" => {
                let percent =
                    value.strip_suffix('%').and_then(|v| v.parse::<f64>().ok()).filter(|p| *p > 0.0 && *p <= 100.0);
                kernel.width = ((percent.ok_or_else(bad)? * 10.0) as u16).max(1);
            }
            "heap" => kernel.heap = true,
            "touch" => kernel.touch = true,
            "sets" => {
                let (index, number) = value.split_once(':').ok_or_else(bad)?;
                kernel.sets = Some((index.parse().map_err(|_| bad())?, number.parse().map_err(|_| bad())?));
            }
            _ => return Err(format!("{key:?} is no attribute of a kernel")),
        }
    }
    let named = [kernel.sets.map(|(i, _)| i), if let Time::Parameter(i) = kernel.time { Some(i) } else { None }];
    for index in named.into_iter().flatten() {
        if kernel.params.get(index).is_none_or(|(_, size)| *size != 8) {
            return Err(format!("parameter {index} must be there and have 8 bytes (param=…)"));
        }
    }
    Ok(kernel)
}

fn time(text: &str) -> Option<Time> {
    if let Some(index) = text.strip_prefix('@') {
        return index.parse().ok().map(Time::Parameter);
    }
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let unit = match &text[split..] {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    let value: f64 = text[..split].parse().ok()?;
    Some(Time::Fixed((value * unit).round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_in_the_manual_is_read() {
        let image = parse(
            "ration-sim-image 1\n# c\nglobal table 64\nkernel step time=1.5us local=16384 shared=1024 regs=32 threads=512 \
             param=8,4,8 width=25% heap touch sets=0:1\nkernel free\n",
        )
        .expect("good");
        assert_eq!(image.globals, [("table".to_owned(), 64)]);
        let step = &image.kernels[0];
        assert_eq!((step.time, step.local, step.width), (Time::Fixed(1500), 16384, 250));
        assert_eq!(step.params, [(0, 8), (8, 4), (16, 8)]);
        assert_eq!(step.sets, Some((0, 1)));
        assert_eq!(image.kernels[1].time, Time::Fixed(0));
    }

    #[test]
    fn a_fault_names_its_line() {
        for (text, line) in [
            ("ration-sim-image 2", 1),
            ("ration-sim-image 1\nkernel", 2),
            ("ration-sim-image 1\nkernel a time=5", 2),
            ("ration-sim-image 1\nkernel a time=@0", 2),
            ("ration-sim-image 1\nkernel a width=0%", 2),
            ("ration-sim-image 1\n\nglobal a lot", 3),
            ("ration-sim-image 1\nkernel a colour=red", 2),
        ] {
            assert_eq!(parse(text).expect_err(text).0, line, "{text}");
        }
    }
}
